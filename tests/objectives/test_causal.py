"""Causal, prefix and hybrid models."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.causal import causal, hybrid, hybrid_batches, prefix
from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
from firth.tokenizers.tokenizer import Vocabulary


def test_the_literals_of_the_docstrings() -> None:
    batch = causal(packed("the dog barked .", "a fox"))
    assert batch.predictions["causal"].positions.tolist() == [0, 1, 2, 4]
    assert predicted(batch, "causal") == "dog barked . fox"
    batch = prefix(packed("the dog barked . it jump ##s"))
    assert (batch.prefix.tolist(), predicted(batch, "prefix")) == ([3], ". it jump ##s")
    texts = packed("[CLS] the lazy dog barked .", "[CLS] a quick fox", seed=5)
    batch = hybrid(texts, VOCABULARY, mask_prob=0.3)
    assert words(batch.inputs) == ["[CLS] the [MASK] dog barked [MASK]", "[CLS] a quick fox"]
    assert batch.prefix.tolist() == [6, 0]
    assert predicted(batch, "masked") == "lazy ."
    assert batch.predictions["masked"].positions.tolist() == [1, 4]
    assert predicted(batch, "causal") == "a quick fox"
    batch = hybrid_batches(texts, VOCABULARY, mask_prob=0.3)
    assert words(batch.inputs) == ["[CLS] the [MASK] dog barked [MASK]", "[CLS] [MASK] quick fox"]
    assert (predicted(batch, "masked"), predicted(batch, "causal")) == ("lazy . a", "")


def test_a_causal_model_predicts_everything_but_each_first_token(million: PackedSequences) -> None:
    batch = causal(million)
    expected = [row[1:] for row in million.rows()]
    np.testing.assert_array_equal(batch.predictions["causal"].targets, np.concatenate(expected))
    assert not batch.prefix.any()


def test_prefixes_are_uniform_and_never_the_whole(million: PackedSequences) -> None:
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


def test_hybrid_mixes_in_the_ratio_asked_for(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = hybrid(million, vocabulary, masked_fraction=0.25)
    is_masked = batch.prefix > 0
    assert is_masked.mean() == pytest.approx(0.25, abs=0.025)  # 5 standard deviations
    assert (batch.prefix[is_masked] == million.lengths[is_masked]).all()
    both, left = batch.predictions["masked"], batch.predictions["causal"]
    # Both predict at the position before the token they ask for.
    np.testing.assert_array_equal(both.targets, million.tokens[both.positions + 1])
    np.testing.assert_array_equal(left.targets, million.tokens[left.positions + 1])
    assert is_masked[million.owners[both.positions]].all()
    assert not is_masked[million.owners[left.positions]].any()
    changed = np.flatnonzero(batch.inputs.tokens != million.tokens)
    assert np.isin(changed - 1, both.positions).all()


def test_a_hidden_first_token_cannot_be_predicted_and_is_not_hidden(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = hybrid(bare_million, vocabulary, masked_fraction=1.0)
    first = bare_million.starts[:-1]
    np.testing.assert_array_equal(batch.inputs.tokens[first], bare_million.tokens[first])
    assert (bare_million.offsets[batch.predictions["masked"].positions + 1] > 0).all()


def test_hybrid_batches_are_all_masked_or_all_causal_in_the_ratio_asked_for(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    parts = [million.between(begin, begin + 8) for begin in range(0, 8000, 8)]
    batches = [hybrid_batches(part, vocabulary, masked_fraction=0.25) for part in parts]
    masked = np.array([batch.prefix.any() for batch in batches])
    assert masked.mean() == pytest.approx(0.25, abs=0.07)  # 5 standard deviations
    for part, batch, is_masked in zip(parts, batches, masked, strict=True):
        # What `hybrid` makes of sequences that are all masked, or all causal; nothing else is drawn
        alone = hybrid(part, vocabulary, masked_fraction=float(is_masked))
        np.testing.assert_array_equal(batch.inputs.tokens, alone.inputs.tokens)
        np.testing.assert_array_equal(batch.prefix, alone.prefix)
        assert batch.counts() == alone.counts()
