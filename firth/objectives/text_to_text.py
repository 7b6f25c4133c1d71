"""Objectives on the other architectures, as Raffel et al. 2020 compare them (section 3.2).

A decoder learns denoising on one sequence, the corrupted text with the spans after it. An
encoder-decoder learns language modelling: its decoder predicts a text, or the rest of a text whose
beginning its encoder reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets, append_token, encoder_decoder_batch
from firth.objectives.causal import prefix
from firth.objectives.denoising import START_ROLES, span_corruption
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.rng import Longs


def causal_denoising(packed: PackedSequences, vocabulary: Vocabulary, **options: Any) -> Batch:
    """Predict the spans of `span_corruption` after the corrupted text, with causal attention.

    Only the spans are predicted, not the corrupted text.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("thank you for invit ##ing me to your party")
    >>> batch = causal_denoising(text, VOCABULARY, noise_density=0.35, mean_span_length=1.5)
    >>> words(batch.inputs)
    ['thank you for invit <extra_id_0> to your <extra_id_1> [SEP] \
<extra_id_0> ##ing me <extra_id_1> party [SEP]']
    >>> predicted(batch, "denoising"), batch.prefix.tolist()
    ('<extra_id_0> ##ing me <extra_id_1> party [SEP]', [0])
    """
    return _concatenate(span_corruption(packed, vocabulary, **options), bidirectional=False)


def prefix_denoising(packed: PackedSequences, vocabulary: Vocabulary, **options: Any) -> Batch:
    """Predict the spans of `span_corruption` after the corrupted text, a bidirectional prefix.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("thank you for invit ##ing me to your party")
    >>> batch = prefix_denoising(text, VOCABULARY, noise_density=0.35, mean_span_length=1.5)
    >>> words(batch.inputs)
    ['thank you for invit <extra_id_0> to your <extra_id_1> [SEP] \
<extra_id_0> ##ing me <extra_id_1> party [SEP]']
    >>> predicted(batch, "denoising"), batch.prefix.tolist()
    ('<extra_id_0> ##ing me <extra_id_1> party [SEP]', [9])
    """
    return _concatenate(span_corruption(packed, vocabulary, **options), bidirectional=True)


def causal_seq2seq(packed: PackedSequences, vocabulary: Vocabulary) -> Batch:
    """Predict a whole text in the decoder of an encoder-decoder; the encoder reads no text.

    The encoder reads the end token alone, as T5 encodes an empty text: the decoder is then a
    language model, whose cross-attention always attends to the same vector.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> batch = causal_seq2seq(packed("the dog barked ."), VOCABULARY)
    >>> words(batch.inputs), words(batch.target), predicted(batch, "causal")
    (['[SEP]'], ['[PAD] the dog barked .'], 'the dog barked . [SEP]')
    """
    return _split(packed, np.zeros_like(packed.lengths), vocabulary, "causal")


def prefix_seq2seq(packed: PackedSequences, vocabulary: Vocabulary) -> Batch:
    """Predict the rest of a text in the decoder from its beginning, which the encoder reads.

    The text is split at the same random point as in `prefix`. This is the objective of the rows
    "Encoder-decoder, LM" in table 2 of Raffel et al. 2020 (section 3.2.3). Sequences of a single
    token are left out.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> batch = prefix_seq2seq(packed("the dog barked . it jump ##s"), VOCABULARY)
    >>> words(batch.inputs), words(batch.target), predicted(batch, "prefix")
    (['the dog barked [SEP]'], ['[PAD] . it jump ##s'], '. it jump ##s [SEP]')
    """
    packed = packed.select(packed.lengths >= 2)
    return _split(packed, prefix(packed).prefix, vocabulary, "prefix")


def _split(packed: PackedSequences, sizes: Longs, vocabulary: Vocabulary, name: str) -> Batch:
    """Give the first `sizes` tokens of each text to the encoder, the others to the decoder."""
    end, is_input = vocabulary.id("eos", "sep"), packed.offsets < sizes[packed.owners]
    inputs, input_sizes = append_token(packed.tokens[is_input], sizes, end)
    labels, label_sizes = append_token(packed.tokens[~is_input], packed.lengths - sizes, end)
    stream = PackedSequences.of_sizes(inputs, input_sizes, packed.keys)
    start = vocabulary.id(*START_ROLES)
    return encoder_decoder_batch(stream, labels, label_sizes, start=start, name=name)


def _concatenate(batch: Batch, *, bidirectional: bool) -> Batch:
    """Turn inputs and targets of an encoder-decoder into one sequence of a decoder."""
    assert batch.target is not None
    inputs, target, labels = batch.inputs, batch.target, batch.predictions["denoising"].targets
    ends = np.repeat(inputs.starts[1:], target.lengths)  # where each target is inserted
    tokens = np.insert(inputs.tokens, ends, labels)
    stream = PackedSequences.of_sizes(tokens, inputs.lengths + target.lengths, inputs.keys)
    is_target = stream.offsets >= inputs.lengths[stream.owners]
    prediction = PredictionTargets(np.flatnonzero(is_target) - 1, labels)
    prefix_lengths = inputs.lengths if bidirectional else np.zeros_like(inputs.lengths)
    return Batch(stream, prefix_lengths, {"denoising": prediction})
