"""The linear-chain CRF against the enumeration of all sequences of tags."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from firth.models.crf import CrfHead, LinearChainCrf
from firth.models.presets.task_models import TASK_MODELS

LENGTHS, TAGS = [3, 1, 4, 2], 3


def random_crf() -> LinearChainCrf:
    crf, draw = LinearChainCrf(TAGS), torch.Generator().manual_seed(0)
    for parameter in crf.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
    return crf


def emissions() -> Tensor:
    return torch.randn(len(LENGTHS), max(LENGTHS), TAGS, generator=torch.Generator().manual_seed(1))


def scores_by_hand(crf: LinearChainCrf, rows: Tensor) -> dict[tuple[int, ...], float]:
    """Add up the score of every sequence of tags of one sentence."""
    found = {}
    for tags in product(range(TAGS), repeat=len(rows)):
        total = float(crf.start[tags[0]] + crf.end[tags[-1]])
        total += sum(float(row[tag]) for row, tag in zip(rows, tags, strict=True))
        total += sum(float(crf.transitions[a, b]) for a, b in pairwise(tags))
        found[tags] = total
    return found


@torch.no_grad()
def test_all_sequences_of_tags() -> None:
    crf, rows, lengths = random_crf(), emissions(), torch.tensor(LENGTHS)
    partition, best = crf.log_partition(rows, lengths), crf.best_tags(rows, lengths)
    highest = crf.max_scores(rows, lengths)
    for i, length in enumerate(LENGTHS):
        scores = scores_by_hand(crf, rows[i, :length])
        expected = torch.logsumexp(torch.tensor(list(scores.values())), 0)
        assert partition[i].item() == pytest.approx(expected.item(), abs=1e-4)
        answer = max(scores, key=scores.__getitem__)
        assert tuple(best[i, :length].tolist()) == answer
        for place, tag in product(range(length), range(TAGS)):
            through = max(score for tags, score in scores.items() if tags[place] == tag)
            assert highest[i, place, tag].item() == pytest.approx(through, abs=1e-4)
        padded = torch.zeros(1, max(LENGTHS), dtype=torch.long)
        padded[0, :length] = torch.tensor(answer)
        own = crf.score(rows[i : i + 1], padded, lengths[i : i + 1])
        assert own.item() == pytest.approx(scores[answer], abs=1e-4)


@torch.no_grad()
def test_the_head_scores_sentences_of_a_packed_batch() -> None:
    config = replace(TASK_MODELS["bilstm-crf"].config, labels=("O", "B", "I"), hidden_size=2)
    head, rows = CrfHead(config, TAGS), emissions()
    head.crf = random_crf()
    packed = torch.cat([rows[i, :length] for i, length in enumerate(LENGTHS)])  # (M, K)
    targets = torch.arange(len(packed)) % TAGS
    losses = head.tag_losses(packed, targets, [*LENGTHS, 0])  # a sentence without words
    parts = zip(packed.split(LENGTHS), targets.split(LENGTHS), losses, strict=True)
    for words, tags, loss in parts:
        scores = scores_by_hand(head.crf, words)
        total = torch.logsumexp(torch.tensor(list(scores.values())), 0).item()
        assert loss.item() == pytest.approx(total - scores[tuple(tags.tolist())], abs=1e-4)
    answers = head.tag_probabilities(packed, LENGTHS)
    assert answers.sum(-1).tolist() == pytest.approx([1.0] * len(packed), abs=1e-5)
    best = head.crf.best_tags(rows, torch.tensor(LENGTHS))
    expected = torch.cat([best[i, :length] for i, length in enumerate(LENGTHS)])
    assert answers.argmax(-1).tolist() == expected.tolist()


@torch.no_grad()
def test_the_best_of_the_allowed_sequences() -> None:
    """Of O, B-X and I-X, the last follows neither O nor the beginning of a sentence."""
    crf, rows, lengths = random_crf(), emissions(), torch.tensor(LENGTHS)
    rows[..., 2] += 9.0  # so that the best sequence breaks BIO
    allowed = torch.ones(TAGS + 1, TAGS, dtype=torch.bool)
    allowed[0, 2] = allowed[-1, 2] = False
    best = crf.best_tags(rows, lengths, allowed)
    assert not torch.equal(best, crf.best_tags(rows, lengths))
    for i, length in enumerate(LENGTHS):
        scores = scores_by_hand(crf, rows[i, :length])
        obeying = {
            tags: score
            for tags, score in scores.items()
            if tags[0] != 2 and (0, 2) not in set(pairwise(tags))
        }
        answer = max(obeying, key=obeying.__getitem__)
        assert tuple(best[i, :length].tolist()) == answer
