"""Next-token prediction: causal, with a bidirectional prefix, or mixed with masked prediction."""

from __future__ import annotations

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets
from firth.objectives.masked import masked
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.rng import uniform

PREFIX, MIX = 10, 11  # names of random draws


def causal(packed: PackedSequences) -> Batch:
    """Predict every token from the tokens before it (GPT; Radford et al. 2018).

    >>> from firth.objectives.toy_vocabulary import packed, predicted, words
    >>> batch = causal(packed("the dog barked .", "a fox"))
    >>> batch.predictions["causal"].positions.tolist(), predicted(batch, "causal")
    ([0, 1, 2, 4], 'dog barked . fox')
    """
    positions = np.flatnonzero(packed.offsets < packed.lengths[packed.owners] - 1)
    prediction = PredictionTargets(positions, packed.tokens[positions + 1])
    return Batch(packed, np.zeros_like(packed.lengths), {"causal": prediction})


def prefix(packed: PackedSequences) -> Batch:
    """Predict the tokens after a bidirectional prefix of random length (Raffel et al. 2020, 3.2.1).

    >>> from firth.objectives.toy_vocabulary import packed, predicted, words
    >>> batch = prefix(packed("the dog barked . it jump ##s"))
    >>> batch.prefix.tolist(), predicted(batch, "prefix")
    ([3], '. it jump ##s')
    """
    longest = np.maximum(packed.lengths - 1, 0)  # leaves at least one token to predict
    lengths = 1 + (uniform(packed.keys, PREFIX) * longest).astype(np.int64)
    positions = causal(packed).predictions["causal"].positions
    positions = positions[packed.offsets[positions] >= lengths[packed.owners[positions]] - 1]
    prediction = PredictionTargets(positions, packed.tokens[positions + 1])
    return Batch(packed, lengths, {"prefix": prediction})


def hybrid(
    packed: PackedSequences,
    vocabulary: Vocabulary,
    *,
    masked_fraction: float = 0.5,
    mask_prob: float = 0.15,
    whole_batches: bool = False,
) -> Batch:
    """Mask some sequences and keep the others causal, for one network with one head.

    A masked token is predicted at the position before it, like a next token (GPT-BERT, Charpentier
    and Samuel 2024), so that the two kinds of sequences differ only in their attention pattern.
    With `whole_batches`, all sequences of a batch are masked or all are causal, for which GPUs have
    faster attention kernels; a hash of the first sequence's key decides.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> texts = packed("[CLS] the lazy dog barked .", "[CLS] a quick fox", seed=5)
    >>> batch = hybrid(texts, VOCABULARY, mask_prob=0.3)
    >>> words(batch.inputs), batch.prefix.tolist()
    (['[CLS] the [MASK] dog barked [MASK]', '[CLS] a quick fox'], [6, 0])
    >>> predicted(batch, "masked"), batch.predictions["masked"].positions.tolist()
    ('lazy .', [1, 4])
    >>> predicted(batch, "causal"), batch.predictions["causal"].positions.tolist()
    ('a quick fox', [6, 7, 8])
    >>> batch = hybrid(texts, VOCABULARY, mask_prob=0.3, whole_batches=True)
    >>> words(batch.inputs), batch.prefix.tolist()
    (['[CLS] the [MASK] dog barked [MASK]', '[CLS] [MASK] quick fox'], [6, 4])
    >>> predicted(batch, "masked"), predicted(batch, "causal")
    ('lazy . a', '')
    """
    keys = packed.keys[:1] if whole_batches else packed.keys
    is_masked = np.broadcast_to(uniform(keys, MIX) < masked_fraction, packed.keys.shape)  # (S,)
    batch = masked(packed, vocabulary, mask_prob=mask_prob)
    token_is_masked = is_masked[packed.owners]  # (N,) whether its sequence is
    # The first token of a sequence has no position before it, and is therefore never masked.
    maskable = token_is_masked & (packed.offsets > 0)
    tokens = np.where(maskable, batch.inputs.tokens, packed.tokens)
    masked_positions = batch.predictions["masked"].positions
    masked_positions = masked_positions[maskable[masked_positions]]
    causal_positions = causal(packed).predictions["causal"].positions
    causal_positions = causal_positions[~token_is_masked[causal_positions]]
    predictions = {
        "masked": PredictionTargets(masked_positions - 1, packed.tokens[masked_positions]),
        "causal": PredictionTargets(causal_positions, packed.tokens[causal_positions + 1]),
    }
    prefix_lengths = np.where(is_masked, packed.lengths, 0)
    return Batch(packed.with_tokens(tokens), prefix_lengths, predictions)
