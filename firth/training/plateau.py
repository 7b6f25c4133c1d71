"""Detect a loss plateau near or above the unigram baseline: a model that does not use context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firth.utils.rng import Longs

WINDOW = 0.12  # fraction of the run over which improvement is measured
START = 0.16  # fraction of the run before which no plateau is reported
MIN_IMPROVEMENT = 0.01  # relative decrease of the loss
MIN_LOSS_RATIO = 0.72  # to the baseline: stuck post-norm BERTs had 0.75 to 0.95 of its loss
NEAR = 1.1  # to the baseline: above, not even the frequencies of tokens are learned
MAX_ACCURACY_RATIO = 1.5  # to the baseline: above, the model uses context

ADVICE = {  # by whether the network is post-norm
    True: "Try --set model.norm_position=pre, a smaller learning rate or a longer warm-up; "
    "post-norm networks often do not leave such a plateau.",
    False: "Try a smaller learning rate, a longer warm-up or a longer run.",
}


class UnigramBaseline(NamedTuple):
    """Loss and accuracy of predicting tokens by their frequency alone."""

    loss: float  # nats per token
    accuracy: float  # the relative frequency of the most frequent token


def unigram_baseline(counts: Longs, ordinary_fraction: float = 1.0) -> UnigramBaseline:
    """Compute the unigram baseline from token counts.

    `ordinary_fraction` of the targets are ordinary tokens; special tokens are easily predicted.

    >>> [round(value, 4) for value in unigram_baseline(np.array([1, 1, 2]))]
    [1.0397, 0.5]
    >>> [round(value, 4) for value in unigram_baseline(np.array([1, 1, 2]), ordinary_fraction=0.5)]
    [0.5199, 0.75]
    """
    commonest = float(counts.max() / counts.sum())
    return UnigramBaseline(
        ordinary_fraction * entropy(counts), 1 - ordinary_fraction * (1 - commonest)
    )


def entropy(counts: Longs) -> float:
    """Return the entropy of a frequency distribution, in nats.

    >>> round(entropy(np.array([1, 1, 2])), 4)
    1.0397
    """
    probabilities = counts[counts > 0] / counts.sum()
    return float(-(probabilities * np.log(probabilities)).sum())


def is_stuck(
    history: Sequence[float], accuracy: float, baseline: UnigramBaseline, parts: int
) -> bool:
    """Return whether the loss no longer falls and is near or above the unigram baseline.

    `history` holds the mean losses of the first of `parts` equal parts of the run.

    >>> falling = [6.0, 5.0, 4.5, 4.0, 3.8, 3.6, 3.5, 3.4, 3.3, 3.2]
    >>> flat, known = [6.0] + [5.9] * 9, UnigramBaseline(6.0, 0.05)
    >>> is_stuck(falling, 0.05, known, parts=50), is_stuck(flat, 0.05, known, parts=50)
    (False, True)
    >>> is_stuck(flat, 0.17, known, parts=50)  # more accurate than the baseline
    False
    """
    window = max(3, round(WINDOW * parts))
    if len(history) < max(round(START * parts), window + 1):
        return False
    if accuracy > MAX_ACCURACY_RATIO * baseline.accuracy:
        return False
    before, now = history[-window - 1], history[-1]
    return now > MIN_LOSS_RATIO * baseline.loss and before - now < MIN_IMPROVEMENT * before


def plateau_note(loss: float, baseline: UnigramBaseline, post_norm: bool) -> str:
    """Describe a loss that has stopped near or above the unigram baseline, with advice.

    >>> plateau_note(7.35, UnigramBaseline(5.68, 0.05), False)[:64]
    'The loss has stopped at 7.35, above the unigram baseline of 5.68'
    """
    near = loss <= NEAR * baseline.loss
    start = (
        f"The loss has stopped at {loss:.2f}, {'near' if near else 'above'} the unigram baseline "
        f"of {baseline.loss:.2f} (predicting tokens by their frequency alone): the model "
    )
    if near:
        return f"{start}may not be using context. {ADVICE[post_norm]}"
    return f"{start}has not learned these frequencies. Try another learning rate or a longer run."
