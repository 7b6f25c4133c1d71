"""Replaced-token detection (ELECTRA, Clark et al. 2020): which tokens did a generator replace?

Two pure steps around the generator: `mask_for_generator` masks tokens, the generator predicts and
samples them; `replaced` inserts the samples and labels each token as original or replaced.
"""

from __future__ import annotations

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets
from firth.objectives.masked import masked
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.rng import Longs


def mask_for_generator(
    packed: PackedSequences, vocabulary: Vocabulary, *, mask_prob: float = 0.15
) -> Batch:
    """Mask tokens for the generator, always with [MASK] (section 2).

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("[CLS] the lazy dog barked . [SEP]")
    >>> batch = mask_for_generator(text, VOCABULARY, mask_prob=0.4)
    >>> words(batch.inputs), predicted(batch, "masked")
    (['[CLS] [MASK] lazy [MASK] barked . [SEP]'], 'the dog')
    """
    return masked(packed, vocabulary, mask_prob=mask_prob, keep_prob=0.0, random_prob=0.0)


def replaced(
    packed: PackedSequences, vocabulary: Vocabulary, hidden: Batch, samples: Longs
) -> Batch:
    """Insert the generator's samples; the target of a token is 1 if it differs from the original.

    A sample equal to the original token counts as original. Special tokens have no target.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, WORDS, packed, words
    >>> text = packed("[CLS] the lazy dog barked . [SEP]")
    >>> hidden = mask_for_generator(text, VOCABULARY, mask_prob=0.4)
    >>> samples = np.array([WORDS.index("the"), WORDS.index("fox")])
    >>> batch = replaced(text, VOCABULARY, hidden, samples)
    >>> words(batch.inputs), batch.predictions["replaced"].targets.tolist()
    (['[CLS] the lazy fox barked . [SEP]'], [0, 0, 1, 0, 0])
    """
    tokens = packed.tokens.copy()
    tokens[hidden.predictions["masked"].positions] = samples
    positions = np.flatnonzero(~vocabulary.special[packed.tokens])
    targets = (tokens != packed.tokens)[positions].astype(np.int64)
    prediction = PredictionTargets(positions, targets)
    return Batch(packed.with_tokens(tokens), packed.lengths, {"replaced": prediction})
