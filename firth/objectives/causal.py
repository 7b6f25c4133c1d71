"""Predicting the next token: from the left alone, behind a prefix, or mixed with masks."""

from __future__ import annotations

import numpy as np

from firth.draws import uniform
from firth.objectives.batch import Batch, Packed, Prediction
from firth.objectives.masked import masked
from firth.text.tokenizer import Vocabulary

PREFIX, MIX = 10, 11  # what is drawn


def causal(packed: Packed) -> Batch:
    """Predict every token from those before it (GPT; Radford et al. 2018).

    >>> from firth.objectives.examples import packed, predicted, words
    >>> batch = causal(packed("the dog barked .", "a fox"))
    >>> batch.predictions["causal"].positions.tolist(), predicted(batch, "causal")
    ([0, 1, 2, 4], 'dog barked . fox')
    """
    positions = np.flatnonzero(packed.offsets < packed.lengths[packed.owners] - 1)
    prediction = Prediction(positions, packed.tokens[positions + 1])
    return Batch(packed, np.zeros_like(packed.lengths), {"causal": prediction})


def prefix(packed: Packed) -> Batch:
    """Read a beginning of random length both ways, predict the rest (Raffel et al. 2020, 3.2.1).

    >>> from firth.objectives.examples import packed, predicted, words
    >>> batch = prefix(packed("the dog barked . it jump ##s"))
    >>> batch.prefix.tolist(), predicted(batch, "prefix")
    ([3], '. it jump ##s')
    """
    room = np.maximum(packed.lengths - 1, 0)  # at least one token is read, and one predicted
    lengths = 1 + (uniform(packed.keys, PREFIX) * room).astype(np.int64)
    everything = causal(packed).predictions["causal"].positions
    positions = everything[packed.offsets[everything] >= lengths[packed.owners[everything]] - 1]
    prediction = Prediction(positions, packed.tokens[positions + 1])
    return Batch(packed, lengths, {"prefix": prediction})


def hybrid(
    packed: Packed, vocabulary: Vocabulary, *, masked_share: float = 0.5, rate: float = 0.15
) -> Batch:
    """Some sequences masked, the others causal, for one network and one head.

    A hidden token is predicted at the position before it, as a next token is (GPT-BERT, Charpentier
    and Samuel 2024): nothing in the network tells the two apart but what may be seen.

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> texts = packed("[CLS] the lazy dog barked .", "[CLS] a quick fox", seed=5)
    >>> batch = hybrid(texts, VOCABULARY, rate=0.3)
    >>> words(batch.inputs), batch.prefix.tolist()
    (['[CLS] the [MASK] dog barked [MASK]', '[CLS] a quick fox'], [6, 0])
    >>> predicted(batch, "masked"), batch.predictions["masked"].positions.tolist()
    ('lazy .', [1, 4])
    >>> predicted(batch, "causal"), batch.predictions["causal"].positions.tolist()
    ('a quick fox', [6, 7, 8])
    """
    is_masked = uniform(packed.keys, MIX) < masked_share  # (S,)
    hidden = masked(packed, vocabulary, rate=rate)
    of_token = is_masked[packed.owners]
    tokens = np.where(of_token, hidden.inputs.tokens, packed.tokens)
    both = hidden.predictions["masked"].positions
    # What stands first in its sequence has no position before it.
    both = both[of_token[both] & (packed.offsets[both] > 0)]
    tokens[of_token & (packed.offsets == 0)] = packed.tokens[of_token & (packed.offsets == 0)]
    left = causal(packed).predictions["causal"].positions
    left = left[~of_token[left]]
    predictions = {
        "masked": Prediction(both - 1, packed.tokens[both]),
        "causal": Prediction(left, packed.tokens[left + 1]),
    }
    prefix_lengths = np.where(is_masked, packed.lengths, 0)
    return Batch(packed.with_tokens(tokens), prefix_lengths, predictions)
