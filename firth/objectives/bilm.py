"""Language modelling in both directions, by two models (ELMo)."""

from __future__ import annotations

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets
from firth.objectives.causal import causal


def bilm(packed: PackedSequences) -> Batch:
    """Predict every token from those before it, and from those after it (Peters et al. 2018).

    The state of a position predicts the next token in the forward language model, which has read
    the tokens up to this one, and the previous token in the backward one.

    >>> from firth.objectives.toy_vocabulary import packed, predicted
    >>> batch = bilm(packed("the dog barked .", "a fox"))
    >>> batch.predictions["forward"].positions.tolist(), predicted(batch, "forward")
    ([0, 1, 2, 4], 'dog barked . fox')
    >>> batch.predictions["backward"].positions.tolist(), predicted(batch, "backward")
    ([1, 2, 3, 5], 'the dog barked a')
    """
    forward = causal(packed)
    positions = np.flatnonzero(packed.offsets > 0)
    backward = PredictionTargets(positions, packed.tokens[positions - 1])
    predictions = {"forward": forward.predictions["causal"], "backward": backward}
    return Batch(packed, forward.prefix, predictions)
