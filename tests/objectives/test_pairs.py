"""Sentence pairs and replaced-token detection."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.pairs import next_sentence, sentence_order
from firth.objectives.replaced import mask_for_generator, replaced
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import derive_keys

KEYS = derive_keys(0, np.arange(500))


def bert_lengths(a: int, b: int, room: int) -> tuple[int, int]:
    """Truncate as BERT's loop does: one token at a time off the longer text."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


def test_truncation_has_the_lengths_of_bert(vocabulary: Vocabulary) -> None:
    sizes = np.random.default_rng(0).integers(1, 40, size=(500, 2))
    first = PackedSequences.join([np.arange(a) + 5 for a, _ in sizes], KEYS)
    second = PackedSequences.join([np.arange(b) + 100 for _, b in sizes], KEYS)
    batch = next_sentence(first, second, np.ones(500, dtype=bool), vocabulary, length=35)
    cut_in_front = excess = 0
    for (a, b), row in zip(sizes.tolist(), batch.inputs.rows(), strict=True):
        keep_a, keep_b = bert_lengths(a, b, 32)
        assert row[0] == 2
        assert row[keep_a + 1] == row[-1] == 3
        assert len(row) == keep_a + keep_b + 3 <= 35
        text = row[1 : keep_a + 1]
        np.testing.assert_array_equal(np.diff(text), 1)
        cut_in_front += text[0] - 5
        excess += a - keep_a
    assert cut_in_front / excess == pytest.approx(0.5, abs=0.05)  # either end with equal chance
    ordered = sentence_order(first, second, vocabulary, length=35)  # truncated at the end only
    assert {int(row[1]) for row in ordered.inputs.rows()} == {5, 100}


def test_half_of_the_pairs_are_swapped(vocabulary: Vocabulary) -> None:
    first = PackedSequences.join([np.arange(4) + 5] * 20_000, derive_keys(0, np.arange(20_000)))
    second = PackedSequences.join([np.arange(4) + 100] * 20_000, derive_keys(1, np.arange(20_000)))
    batch = sentence_order(first, second, vocabulary, length=20)
    swapped = batch.predictions["sentence order"].targets
    assert swapped.mean() == pytest.approx(0.5, abs=0.018)  # 5 standard deviations
    begins = np.array([row[1] for row in batch.inputs.rows()])
    np.testing.assert_array_equal(begins == 100, swapped == 1)


def test_too_short_pairs_are_an_error(vocabulary: Vocabulary) -> None:
    text = PackedSequences.join([np.array([5])], derive_keys(0, [0]))
    with pytest.raises(UsageError, match="5, not 4"):
        sentence_order(text, text, vocabulary, length=4)


def test_detection_has_a_target_for_every_ordinary_token(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    hidden = mask_for_generator(million, vocabulary)
    targets = hidden.predictions["masked"].targets
    assert (hidden.inputs.tokens[hidden.predictions["masked"].positions] == 4).all()
    samples = np.where(np.arange(len(targets)) % 4 == 0, targets, 5)
    batch = replaced(million, vocabulary, hidden, samples)
    prediction = batch.predictions["replaced"]
    np.testing.assert_array_equal(
        prediction.positions, np.flatnonzero(~vocabulary.special[million.tokens])
    )
    wrong = (samples != targets).sum()
    assert prediction.targets.sum() == wrong
    assert wrong / len(prediction.targets) == pytest.approx(0.15 * 0.75, abs=0.002)
