"""Causal, prefix and hybrid language modelling."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.causal import causal, hybrid, prefix
from firth.tokenizers.tokenizer import Vocabulary


def test_causal_targets_are_all_tokens_but_the_first(million: PackedSequences) -> None:
    batch = causal(million)
    expected = [row[1:] for row in million.rows()]
    np.testing.assert_array_equal(batch.predictions["causal"].targets, np.concatenate(expected))
    assert not batch.prefix.any()


def test_prefix_lengths_are_uniform_and_shorter_than_the_sequence(million: PackedSequences) -> None:
    batch = prefix(million)
    assert batch.prefix.min() == 1
    assert (batch.prefix < million.lengths).all()
    share = batch.prefix / million.lengths
    assert share.mean() == pytest.approx(0.5, abs=0.02)
    prediction = batch.predictions["prefix"]
    # The last token of the prefix is the first to predict; nothing inside the prefix is predicted.
    owners = million.owners[prediction.positions]
    assert (million.offsets[prediction.positions] >= batch.prefix[owners] - 1).all()
    assert len(prediction.targets) == (million.lengths - batch.prefix).sum()
    np.testing.assert_array_equal(prediction.targets, million.tokens[prediction.positions + 1])


def test_hybrid_masks_the_given_fraction_of_sequences(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = hybrid(million, vocabulary, masked_fraction=0.25)
    is_masked = batch.prefix > 0
    assert is_masked.mean() == pytest.approx(0.25, abs=0.025)  # 5 standard deviations
    assert (batch.prefix[is_masked] == million.lengths[is_masked]).all()
    both, left = batch.predictions["masked"], batch.predictions["causal"]
    # Both predict at the position before the target.
    np.testing.assert_array_equal(both.targets, million.tokens[both.positions + 1])
    np.testing.assert_array_equal(left.targets, million.tokens[left.positions + 1])
    assert is_masked[million.owners[both.positions]].all()
    assert not is_masked[million.owners[left.positions]].any()
    changed = np.flatnonzero(batch.inputs.tokens != million.tokens)
    assert np.isin(changed - 1, both.positions).all()


def test_hybrid_never_masks_the_first_token(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = hybrid(bare_million, vocabulary, masked_fraction=1.0)
    first = bare_million.starts[:-1]
    np.testing.assert_array_equal(batch.inputs.tokens[first], bare_million.tokens[first])
    assert (bare_million.offsets[batch.predictions["masked"].positions + 1] > 0).all()


def test_hybrid_batches_are_all_masked_or_all_causal(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    parts = [million.between(begin, begin + 8) for begin in range(0, 8000, 8)]
    options = {"masked_fraction": 0.25, "whole_batches": True}
    batches = [hybrid(part, vocabulary, **options) for part in parts]
    masked = np.array([batch.prefix.any() for batch in batches])
    assert masked.mean() == pytest.approx(0.25, abs=0.07)  # 5 standard deviations
    for part, batch, is_masked in zip(parts, batches, masked, strict=True):
        alone = hybrid(part, vocabulary, masked_fraction=float(is_masked))
        np.testing.assert_array_equal(batch.inputs.tokens, alone.inputs.tokens)
        np.testing.assert_array_equal(batch.prefix, alone.prefix)
        assert batch.counts() == alone.counts()
