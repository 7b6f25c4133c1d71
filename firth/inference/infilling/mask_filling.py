"""Fill blanks with a masked language model: the best tokens per blank, and for all together."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import NamedTuple

import numpy as np
import torch

from firth.data.windows import window_spans
from firth.inference.batching import batch_by_length, nan_error
from firth.inference.infilling.blanks import BlankFill, token_fill, tokenize_words
from firth.inference.infilling.fill_methods import (
    BlankFiller,
    EncodedBlanks,
    FillCandidate,
    FilledSentence,
    FillResult,
    Ids,
    check_top,
    make_filler,
)
from firth.inference.infilling.span_filling import fill_by_generation
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states, score_requests
from firth.models.language_model import LanguageNetwork
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import UsageError
from firth.utils.rng import Floats

MAX_LOGITS = 1 << 24  # logits in memory at a time


def fill(
    network: LanguageNetwork, tokenizer: Tokenizer, text: str, *, top: int = 5
) -> list[list[FillCandidate]]:
    """Return the best candidates for each blank of a text."""
    filler = make_filler(network, tokenizer)
    return fill_batch(filler, [filler.encode(text)], top=top)[0].blanks


def fill_batch(
    filler: BlankFiller,
    questions: Sequence[EncodedBlanks],
    *,
    top: int = 5,
    targets: Sequence[str] | str = (),
) -> list[FillResult]:
    """Fill the blanks of several texts, with the `top` best fills or the given `targets`."""
    check_top(top)
    method = _fill_by_masks if filler.method == "masks" else fill_by_generation
    return method(filler, questions, top, [targets] if isinstance(targets, str) else targets)


class TopTokens(NamedTuple):
    """The most probable tokens of one blank."""

    ids: list[int]
    probs: list[float]


def _fill_by_masks(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], top: int, targets: Sequence[str]
) -> list[FillResult]:
    if targets:
        found = _score_targets(filler, questions, targets)
        sentences: list[list[FilledSentence]] = [[] for _ in questions]
    else:
        found = top_tokens(filler, [(one.ids, one.positions) for one in questions], top)
        sentences = _fill_jointly(filler, questions, found, top)
    return [
        FillResult(question.text, _candidates(filler, question, best), own)
        for question, best, own in zip(questions, found, sentences, strict=True)
    ]


@torch.no_grad()
def top_tokens(
    filler: BlankFiller, rows: Sequence[tuple[Ids, Ids]], top: int
) -> list[list[TopTokens]]:
    """Return the most probable tokens at the given positions of each row.

    Results do not depend on the batching.
    """
    network, found = filler.network, list[list[TopTokens]]([] for _ in rows)
    chunk = max(1, MAX_LOGITS // network.config.vocab_size)
    for batch in batch_by_length([(len(ids),) for ids, _ in rows]):
        requests = [ScoringRequest(rows[i][0], (), ()) for i in batch]
        hidden = hidden_states(network, requests, bidirectional=True)
        starts = np.cumsum([0, *(len(request.tokens) for request in requests)]) - filler.shift
        places = [
            (i, start + at) for i, start in zip(batch, starts, strict=False) for at in rows[i][1]
        ]
        for begin, end in window_spans(len(places), chunk, chunk):
            owners, at = zip(*places[begin:end], strict=True)
            probs = network.logits(hidden[list(at)]).float().softmax(-1)
            if probs.isnan().any():
                raise nan_error()
            best = probs.topk(min(top, probs.shape[1]))
            lists = zip(owners, best.indices.tolist(), best.values.tolist(), strict=True)
            for row, ids, values in lists:
                found[row].append(TopTokens(ids, values))
    return found


def _score_targets(
    filler: BlankFiller, questions: Sequence[EncodedBlanks], targets: Sequence[str]
) -> list[list[TopTokens]]:
    """Score each target's token in each blank; it differs at the beginning of a text."""
    lists = [
        [
            [word_token(filler.tokenizer, word, spaced=part[-1:].isspace()) for word in targets]
            for part in own
        ]
        for own in (question.blanks.parts[:-1] for question in questions)
    ]
    requests = (
        ScoringRequest(question.ids, [position - filler.shift] * len(ids), ids)
        for question, own in zip(questions, lists, strict=True)
        for position, ids in zip(question.positions, own, strict=True)
    )
    scores = score_requests(filler.network, requests, bidirectional=True)
    return [[_sorted(ids, np.exp(next(scores).log_probs)) for ids in own] for own in lists]


def _sorted(ids: Sequence[int], probs: Floats) -> TopTokens:
    order = np.argsort(-probs, kind="stable")
    return TopTokens([ids[i] for i in order], probs[order].tolist())


def _candidates(
    filler: BlankFiller, question: EncodedBlanks, found: Sequence[TopTokens]
) -> list[list[FillCandidate]]:
    """Return the candidates for each blank; in their texts, the other blanks stay."""
    tokenizer, lists = filler.tokenizer, []
    for blank, best in enumerate(found):
        fills = [BlankFill(filler.mark, starts_word=False)] * len(question.blanks)
        candidates = []
        for id, prob in zip(*best, strict=True):
            fills[blank] = token_fill(tokenizer, id)
            text = question.blanks.filled(fills)
            candidates.append(FillCandidate(_token_text(tokenizer, id), prob, text))
        lists.append(candidates)
    return lists


def _token_text(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.decode([id]).strip() or str(tokenizer.backend.id_to_token(id))


def _fill_jointly(
    filler: BlankFiller,
    questions: Sequence[EncodedBlanks],
    first: Sequence[Sequence[TopTokens]],
    top: int,
) -> list[list[FilledSentence]]:
    """Fill several blanks from left to right, each token given the previous ones.

    A beam search of `top` beams; the score is the product of the probabilities.
    """
    several = [i for i, question in enumerate(questions) if len(question.positions) > 1]
    beams = {i: _extend([((), 0.0)], [first[i][0]], top) for i in several}
    for blank in range(1, max((len(questions[i].positions) for i in several), default=0)):
        active = [i for i in several if blank < len(questions[i].positions)]
        rows = [
            (_with_tokens(questions[i], tokens), questions[i].positions[blank : blank + 1])
            for i in active
            for tokens, _ in beams[i]
        ]
        found = iter(top_tokens(filler, rows, top))
        for i in active:
            beams[i] = _extend(beams[i], [next(found)[0] for _ in beams[i]], top)
    return [
        [_sentence(filler, question, *beam) for beam in beams.get(i, ())]
        for i, question in enumerate(questions)
    ]


Beam = tuple[Ids, float]


def _extend(beams: Sequence[Beam], found: Sequence[TopTokens], top: int) -> list[Beam]:
    extended = [
        ((*tokens, id), total + log(max(prob, 1e-45)))
        for (tokens, total), best in zip(beams, found, strict=True)
        for id, prob in zip(*best, strict=True)
    ]
    return sorted(extended, key=lambda beam: -beam[1])[:top]


def _with_tokens(question: EncodedBlanks, tokens: Ids) -> Ids:
    ids = list(question.ids)
    for position, id in zip(question.positions, tokens, strict=False):
        ids[position] = id
    return tuple(ids)


def _sentence(
    filler: BlankFiller, question: EncodedBlanks, tokens: Ids, total: float
) -> FilledSentence:
    text = question.blanks.filled([token_fill(filler.tokenizer, id) for id in tokens])
    return FilledSentence([_token_text(filler.tokenizer, id) for id in tokens], exp(total), text)


def word_token(tokenizer: Tokenizer, word: str, *, spaced: bool) -> int:
    """Return the single token of a word, after a space or at the beginning of a text."""
    [ids] = tokenize_words(tokenizer, [word], spaced=spaced)
    if len(ids) != 1:
        tokens = " ".join(str(tokenizer.backend.id_to_token(id)) for id in ids)
        raise UsageError(
            f"{word!r} is {len(ids)} tokens for this model ({tokens}), but a blank holds one; use "
            "words that are a single token."
        )
    if ids[0] == tokenizer.unknown_id:
        raise UsageError(f"{word!r} is not in this model's vocabulary.")
    return ids[0]
