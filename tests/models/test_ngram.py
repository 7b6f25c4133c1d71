"""N-gram models: a hand-worked example, the definitions in plain Python, and probabilities."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from firth.data.shards import MemoryShards, TokenizedDocuments
from firth.models.masks import Mask
from firth.models.ngram import counting, kneser_ney
from firth.models.ngram.config import NgramConfig
from firth.models.ngram.counting import bounded_text, count_ngrams
from firth.models.ngram.kneser_ney import KneserNey
from firth.models.ngram.model import NgramModel
from firth.utils.errors import MismatchError

Documents = list[list[int]]
Ngram = tuple[int, ...]


def fit(
    documents: Documents, order: int, size: int, bos: int, eos: int, folder: Path
) -> tuple[NgramModel, list[str]]:
    """Fit a model of token ids; also return the notes."""
    lengths = np.array([len(document) for document in documents])
    tokens = np.array([id for document in documents for id in document], dtype=np.uint16)
    shards = MemoryShards(TokenizedDocuments(tokens, lengths, lengths), "documents")
    text, notes = bounded_text(shards, bos, eos, size), list[str]()
    counts = count_ngrams(text, order, size, folder, lambda *_: None)
    predicted = np.arange(size) != (bos if bos != eos else -1)
    smoothed = KneserNey(counts, bos, predicted, notes.append).smooth()
    config = NgramConfig(order=order, vocab_size=size, bos_token_id=bos, eos_token_id=eos)
    return NgramModel.from_orders(config, smoothed), notes


def stored(model: NgramModel) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Return the probabilities and back-off weights of a model by n-gram."""
    probs, weights, known = {}, {}, {(): 0}
    for order in model.orders:
        names = {number: ngram for ngram, number in known.items()}
        known = {}
        for i, key in enumerate(order.keys.tolist()):
            context, word = divmod(key, model.config.vocab_size)
            known[ngram := (*names[context], word)] = i
            probs[ngram] = math.exp(order.log_probs[i])
            weights[ngram] = math.exp(order.backoffs[i]) if len(order.backoffs) else 1.0
    return probs, weights


# ---- by hand

A, B, C, D, UNK, BOS, EOS = range(7)
TEXT = [[A, B, C], [A, B], [A, B, D], [A, C], [C], [D], [B]]


def test_a_bigram_model_by_hand(tmp_path: Path) -> None:
    """Seven texts: `a b c`, `a b`, `a b d`, `a c`, `c`, `d`, `b`.

    Bigrams: <s> a 4; a b, c </s> 3; b </s>, d </s> 2; a c, b c, b d, <s> b, <s> c, <s> d 1.
    So t = 6, 2, 2, 1 and t_1 / (t_1 + 2 t_2) = 0.6:
        D(1) = 1 - 2 * 0.6 * 2 / 6 = 0.6
        D(2) = 2 - 3 * 0.6 * 2 / 2 = 0.2
        D(3) = 3 - 4 * 0.6 * 1 / 2 = 1.8

    Words before each word: a 1; b, d 2; c, </s> 3; 11 in all. So t = 1, 2, 2, 0, and with 0.2:
        D(1) = 1 - 2 * 0.2 * 2 / 1 = 0.2
        D(2) = 2 - 3 * 0.2 * 2 / 2 = 1.4
        D(3) = 3 - 0 = 3
    The back-off weight of the empty context is (0.2 + 2 * 1.4 + 2 * 3) / 11 = 9 / 11, shared by the
    six words a, b, c, d, </s> and <unk>: 1.5 / 11 for each.
        p(a) = (0.8 + 1.5) / 11     p(b) = p(d) = (0.6 + 1.5) / 11     p(c) = p(</s>) = 1.5 / 11

    After a: b 3, c 1. b(a) = (1.8 + 0.6) / 4 = 0.6.
        p(b | a) = (3 - 1.8) / 4 + 0.6 * 2.1 / 11
    """
    assert kneser_ney.estimate_discounts(np.array([6, 2, 2, 1])) == pytest.approx([0.6, 0.2, 1.8])
    assert kneser_ney.estimate_discounts(np.array([1, 2, 2, 0])) == pytest.approx([0.2, 1.4, 3.0])
    model, notes = fit(TEXT, 2, 7, BOS, EOS, tmp_path)
    probs, weights = stored(model)
    assert notes == []
    ones = {A: 2.3, B: 2.1, C: 1.5, D: 2.1, EOS: 1.5, UNK: 1.5, BOS: 0.0}
    assert {word: probs[word,] for word in ones} == pytest.approx(
        {word: times / 11 for word, times in ones.items()}
    )
    expected = {
        (BOS, A): 2.2 / 7 + 3.6 / 7 * 2.3 / 11,
        (BOS, B): 0.4 / 7 + 3.6 / 7 * 2.1 / 11,
        (A, B): 1.2 / 4 + 0.6 * 2.1 / 11,
        (A, C): 0.4 / 4 + 0.6 * 1.5 / 11,
        (B, EOS): 1.8 / 4 + 0.35 * 1.5 / 11,
        (C, EOS): 1.2 / 3 + 0.6 * 1.5 / 11,
    }
    assert {ngram: probs[ngram] for ngram in expected} == pytest.approx(expected)
    backoffs = {A: 0.6, B: 0.35, C: 0.6, D: 0.1, BOS: 3.6 / 7, EOS: 1.0, UNK: 1.0}
    assert {word: weights[word,] for word in backoffs} == pytest.approx(backoffs)


# ---- the definitions in plain Python


def reference(
    documents: Documents, order: int, size: int, bos: int, eos: int
) -> tuple[dict[Ngram, float], dict[Ngram, float]]:
    """Compute probabilities and back-off weights with dictionaries, as Chen and Goodman define."""
    rows = [[bos, *document, eos] for document in documents]
    counts = [
        Counter(tuple(row[i : i + n]) for row in rows for i in range(len(row) - n + 1))
        for n in range(1, order + 1)
    ]
    probs: dict[Ngram, float] = {}
    weights: dict[Ngram, float] = {}
    for n in range(1, order + 1):
        adjusted = dict(counts[n - 1])
        if n < order:
            before = Counter(ngram[1:] for ngram in counts[n])
            adjusted = {g: adjusted[g] if g[0] == bos and n > 1 else before[g] for g in adjusted}
        if n == 1:
            adjusted = {(id,): adjusted.get((id,), 0) for id in range(size) if id != bos}
        t = Counter(adjusted.values())
        y = t[1] / (t[1] + 2 * t[2]) if t[1] else 0.0
        usable = t[1] and t[2] and t[3]
        d = [k - (k + 1) * y * t[k + 1] / t[k] for k in (1, 2, 3)] if usable else [0.0]
        if min(d) <= 0:
            d = [0.5, 1.0, 1.5]
        followers: dict[Ngram, list[Ngram]] = defaultdict(list)
        for ngram in adjusted:
            followers[ngram[:-1]].append(ngram)
        for context, ngrams in followers.items():
            total = sum(adjusted[ngram] for ngram in ngrams)
            discounts = {g: d[min(adjusted[g], 3) - 1] if adjusted[g] else 0.0 for g in ngrams}
            weights[context] = sum(discounts.values()) / total
            for g in ngrams:
                lower = probs[g[1:]] if n > 1 else 1 / (size - 1)
                probs[g] = (adjusted[g] - discounts[g]) / total + weights[context] * lower
    return probs, weights


def random_text(seed: int, size: int, documents: int) -> Documents:
    """Draw documents whose words follow each other with some regularity."""
    draw = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        words = [int(draw.integers(size))]
        while len(words) < draw.integers(1, 12):
            follows = (2 * words[-1] + int(draw.integers(2))) % size
            words.append(follows if draw.random() < 0.8 else int(draw.integers(size)))
        texts.append(words)
    return texts


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("block", [50, 1 << 20])
def test_it_equals_the_definitions(
    order: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "BLOCK", block)
    monkeypatch.setattr(kneser_ney, "BLOCK", block)
    documents = random_text(order, size=8, documents=60)
    model, _ = fit(documents, order, 11, 8, 9, tmp_path)
    probs, weights = stored(model)
    expected, expected_weights = reference(documents, order, 11, 8, 9)
    assert {g: p for g, p in probs.items() if g != (8,)} == pytest.approx(expected, rel=1e-5)
    assert {g: weights[g] for g in expected_weights if g} == pytest.approx(
        {g: weight for g, weight in expected_weights.items() if g}, rel=1e-5
    )


# ---- as a network


def contexts(size: int, seed: int) -> list[list[int]]:
    return [[*row] for row in np.random.default_rng(seed).integers(0, size, (40, 7)).tolist()]


@pytest.mark.parametrize("eos", [9, 8])  # 8: the token that begins a text also ends it, as in GPT-2
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_probabilities_sum_to_one(order: int, eos: int, tmp_path: Path) -> None:
    documents = random_text(0, size=8, documents=80)
    model, _ = fit(documents, order, 11, 8, eos, tmp_path)
    for rows in (documents[:40], contexts(11, seed=1)):
        lengths = [len(row) for row in rows]
        tokens = torch.tensor([id for row in rows for id in row])
        states = model(tokens, Mask.causal(lengths))
        logits = model.logits(states)
        assert logits.exp().sum(-1) == pytest.approx(np.ones(len(tokens)), abs=1e-5)
        targets = torch.from_numpy(np.random.default_rng(2).permutation(len(tokens)) % 11)
        found, is_top = model.score_tokens(states, targets)
        own = logits.gather(1, targets[:, None])[:, 0]
        assert torch.equal(found, own)
        assert torch.equal(is_top, own == logits.amax(-1))


def test_packed_sequences_do_not_see_each_other(tmp_path: Path) -> None:
    model, _ = fit(random_text(0, 8, 80), 4, 11, 8, 9, tmp_path)
    rows = [[8, 1, 2, 4], [3], [8, 5, 6]]
    together = model(torch.tensor([id for row in rows for id in row]), Mask.causal([4, 1, 3]))
    alone = [model(torch.tensor(row), Mask.causal([len(row)])) for row in rows]
    assert torch.equal(together, torch.cat(alone))
    assert alone[0].tolist() == [[-1, -1, 8], [-1, 8, 1], [8, 1, 2], [1, 2, 4]]


def test_a_text_of_one_word_has_a_model(tmp_path: Path) -> None:
    model, notes = fit([[A]], 5, 7, BOS, EOS, tmp_path)  # there are no 4-grams
    assert len(notes) == 5
    assert all("0.5, 1 and 1.5" in note for note in notes)
    logits = model.logits(model(torch.tensor([BOS, A]), Mask.causal([2])))
    assert logits.argmax(-1).tolist() == [A, EOS]
    assert logits.exp().sum(-1) == pytest.approx(np.ones(2))


def test_it_has_no_hidden_states(tmp_path: Path) -> None:
    model, _ = fit(TEXT, 2, 7, BOS, EOS, tmp_path)
    with pytest.raises(MismatchError, match="hidden states"):
        model.encode(torch.tensor([A]), Mask.causal([1]))
    with pytest.raises(MismatchError, match="hidden states"):
        NgramModel(model.config, ["classify"])


def test_keys_of_any_size_are_sorted_with_their_indices() -> None:
    keys = np.random.default_rng(0).integers(0, 50, 1000)
    for limit in (50, 1 << 62):  # keys and indices in one number, or not
        found, order = counting.sort_keys(keys, limit)
        assert (found == np.sort(keys)).all()
        assert (order == np.argsort(keys, kind="stable")).all()
