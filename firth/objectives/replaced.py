"""Replaced-token detection (ELECTRA, Clark et al. 2020): which tokens did a small network make up?

Two pure halves around the generator: `masked` hides tokens, the generator predicts them and
samples; `replaced` puts its samples in their places and asks of every token whether it is the
original.
"""

from __future__ import annotations

import numpy as np

from firth.draws import Longs
from firth.objectives.batch import Batch, Packed, Prediction
from firth.objectives.masked import masked
from firth.text.tokenizer import Vocabulary


def hidden_for_generator(packed: Packed, vocabulary: Vocabulary, *, rate: float = 0.15) -> Batch:
    """The first half: hide tokens for the generator, always behind a mask (section 2).

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> text = packed("[CLS] the lazy dog barked . [SEP]")
    >>> batch = hidden_for_generator(text, VOCABULARY, rate=0.4)
    >>> words(batch.inputs), predicted(batch, "masked")
    (['[CLS] [MASK] lazy [MASK] barked . [SEP]'], 'the dog')
    """
    return masked(packed, vocabulary, rate=rate, kept=0.0, random=0.0)


def replaced(packed: Packed, vocabulary: Vocabulary, hidden: Batch, samples: Longs) -> Batch:
    """The second half: the generator's samples in their places; 1 where a token is not its own.

    A sample that happens to be right counts as original. Special tokens are not asked about.

    >>> from firth.objectives.examples import VOCABULARY, WORDS, packed, words
    >>> text = packed("[CLS] the lazy dog barked . [SEP]")
    >>> hidden = hidden_for_generator(text, VOCABULARY, rate=0.4)
    >>> samples = np.array([WORDS.index("the"), WORDS.index("fox")])
    >>> batch = replaced(text, VOCABULARY, hidden, samples)
    >>> words(batch.inputs), batch.predictions["replaced"].targets.tolist()
    (['[CLS] the lazy fox barked . [SEP]'], [0, 0, 1, 0, 0])
    """
    tokens = packed.tokens.copy()
    tokens[hidden.predictions["masked"].positions] = samples
    positions = np.flatnonzero(~vocabulary.special[packed.tokens])
    targets = (tokens != packed.tokens)[positions].astype(np.int64)
    prediction = Prediction(positions, targets)
    return Batch(packed.with_tokens(tokens), packed.lengths, {"replaced": prediction})
