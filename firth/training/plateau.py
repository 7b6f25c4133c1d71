"""Recognise a run that has stopped learning where guessing by frequency would stand too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.draws import Longs

LOOK = 0.12  # the part of a run that is looked at
EARLY = 0.16  # nothing is said before this part of it is over
MOVED = 0.01  # less improvement than this, relative to the loss, is none
NEAR = 0.72  # of the entropy: post-norm BERT sat between 0.75 and 0.95 of it


def is_stuck(history: Sequence[float], entropy: float, parts: int) -> bool:
    """Whether the mean losses of the parts of a run so far have settled near the entropy.

    >>> falling = [6.0, 5.0, 4.5, 4.0, 3.8, 3.6, 3.5, 3.4, 3.3, 3.2]
    >>> is_stuck(falling, entropy=6.0, parts=50), is_stuck([6.0] + [5.9] * 9, 6.0, parts=50)
    (False, True)
    """
    look = max(3, round(LOOK * parts))
    if len(history) < max(round(EARLY * parts), look + 1):
        return False
    before, now = history[-look - 1], history[-1]
    return now > NEAR * entropy and before - now < MOVED * before


def entropy(counts: Longs) -> float:
    """What a guess by frequency alone costs, in nats for each token.

    >>> round(entropy(np.array([1, 1, 2])), 4)
    1.0397
    """
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
