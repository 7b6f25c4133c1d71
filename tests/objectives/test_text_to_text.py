"""Denoising for decoders, language modelling for encoder-decoders."""

from __future__ import annotations

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch
from firth.objectives.causal import prefix
from firth.objectives.denoising import span_corruption
from firth.objectives.text_to_text import (
    causal_denoising,
    causal_seq2seq,
    prefix_denoising,
    prefix_seq2seq,
)
from firth.tokenizers.tokenizer import Vocabulary

END = 3


def labels_of(batch: Batch, name: str) -> list[list[int]]:
    """Return the targets of each sequence."""
    prediction = batch.predictions[name]
    owners = batch.output.owners[prediction.positions]
    return [prediction.targets[owners == i].tolist() for i in range(len(batch.output.keys))]


def first(packed: PackedSequences, count: int) -> PackedSequences:
    return packed.between(0, count)


def test_decoders_denoise_the_inputs_and_targets_of_span_corruption(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    texts = first(bare_million, 300)
    both = span_corruption(texts, vocabulary)
    left, bidirectional = (f(texts, vocabulary) for f in (causal_denoising, prefix_denoising))
    targets = labels_of(both, "denoising")
    pairs = zip(both.inputs.rows(), targets, strict=True)
    expected = [[*inputs.tolist(), *spans] for inputs, spans in pairs]
    for batch in (left, bidirectional):
        assert [row.tolist() for row in batch.inputs.rows()] == expected
        assert labels_of(batch, "denoising") == targets
        prediction = batch.predictions["denoising"]
        # Every target is the token after the position at which it is predicted.
        np.testing.assert_array_equal(
            batch.inputs.tokens[prediction.positions + 1], prediction.targets
        )
    assert not left.prefix.any()
    np.testing.assert_array_equal(bidirectional.prefix, both.inputs.lengths)


def test_noise_density_of_concatenated_sequences(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = causal_denoising(bare_million, vocabulary, noise_density=0.3, mean_span_length=2.0)
    targets = batch.predictions["denoising"].targets
    sentinels = np.isin(targets, vocabulary.sentinels).sum()
    removed = len(targets) - sentinels - len(bare_million.keys)
    assert removed / len(bare_million.tokens) == pytest.approx(0.3, abs=0.002)
    assert removed / sentinels == pytest.approx(2.0, abs=0.05)
    assert len(batch.inputs.tokens) == (
        len(bare_million.tokens) + 2 * sentinels + 2 * len(bare_million.keys)
    )


def test_a_causal_encoder_decoder_predicts_the_whole_text(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    texts = first(bare_million, 300)
    batch = causal_seq2seq(texts, vocabulary)
    assert [row.tolist() for row in batch.inputs.rows()] == [[END]] * 300
    expected = [[*row.tolist(), END] for row in texts.rows()]
    assert labels_of(batch, "causal") == expected
    assert batch.target is not None
    shifted = [[0, *row[:-1]] for row in expected]
    assert [row.tolist() for row in batch.target.rows()] == shifted


@pytest.mark.nightly
def test_a_prefix_encoder_decoder_splits_the_text_as_a_prefix_language_model(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch, one_stack = prefix_seq2seq(bare_million, vocabulary), prefix(bare_million)
    np.testing.assert_array_equal(batch.inputs.lengths - 1, one_stack.prefix)
    share = one_stack.prefix / bare_million.lengths
    assert share.mean() == pytest.approx(0.5, abs=0.02)
    labels = labels_of(batch, "prefix")[:300]
    texts = zip(batch.inputs.rows(), labels, bare_million.rows(), strict=False)
    for inputs, rest, text in texts:
        assert inputs[-1] == rest[-1] == END
        assert [*inputs[:-1], *rest[:-1]] == text.tolist()
    assert (
        len(prefix_seq2seq(bare_million.select(bare_million.lengths < 2), vocabulary).prefix) == 0
    )
