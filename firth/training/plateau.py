"""Recognise a run that has stopped learning where guessing by frequency would stand too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firth.draws import Longs

LOOK = 0.12  # the part of a run that is looked at
EARLY = 0.16  # nothing is said before this part of it is over
MOVED = 0.01  # less improvement than this, relative to the loss, is none
NEAR = 0.72  # of the guess's loss: post-norm BERT sat between 0.75 and 0.95 of it
OFTENER = 1.5  # right than the guess: something is learned from context


class Guess(NamedTuple):
    """What naming tokens by their frequency alone brings."""

    loss: float  # nats for each token
    right: float  # the share of tokens that the commonest one is


def guess(counts: Longs, ordinary: float = 1.0) -> Guess:
    """What it brings to know how often each token occurs.

    `ordinary`: so many of those that are asked for; special ones are soon known by their places.

    >>> [round(figure, 4) for figure in guess(np.array([1, 1, 2]))]
    [1.0397, 0.5]
    >>> [round(figure, 4) for figure in guess(np.array([1, 1, 2]), ordinary=0.5)]
    [0.5199, 0.75]
    """
    commonest = float(counts.max() / counts.sum())
    return Guess(ordinary * entropy(counts), 1 - ordinary * (1 - commonest))


def entropy(counts: Longs) -> float:
    """What a guess by frequency alone costs, in nats.

    >>> round(entropy(np.array([1, 1, 2])), 4)
    1.0397
    """
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def is_stuck(history: Sequence[float], right: float, guess: Guess, parts: int) -> bool:
    """Whether the mean losses of the parts of a run so far have settled near those of a guess.

    >>> falling = [6.0, 5.0, 4.5, 4.0, 3.8, 3.6, 3.5, 3.4, 3.3, 3.2]
    >>> flat, known = [6.0] + [5.9] * 9, Guess(6.0, 0.05)
    >>> is_stuck(falling, 0.05, known, parts=50), is_stuck(flat, 0.05, known, parts=50)
    (False, True)
    >>> is_stuck(flat, 0.17, known, parts=50)  # more often right than a guess
    False
    """
    look = max(3, round(LOOK * parts))
    if len(history) < max(round(EARLY * parts), look + 1) or right > OFTENER * guess.right:
        return False
    before, now = history[-look - 1], history[-1]
    return now > NEAR * guess.loss and before - now < MOVED * before
