"""Monotone curves: isotonic regression, and how many labels reach a score.

R  resamples     K  numbers of labels
"""

from __future__ import annotations

import math

import numpy as np

from firth.utils.rng import Floats


def isotonic(values: Floats) -> Floats:
    """Fit the nearest non-decreasing sequence to each row by the min-max formula.

    >>> isotonic(np.array([[0.5, 1.0, 0.75, 1.0]])).tolist()
    [[0.5, 0.875, 0.875, 1.0]]
    """
    count = values.shape[-1]
    sums = np.concatenate([np.zeros((*values.shape[:-1], 1)), values.cumsum(-1)], -1)
    fitted = np.empty_like(values)
    for i in range(count):
        # max over starts j ≤ i of the min over ends k ≥ i of the mean of values[j..k]
        means = [
            np.min([(sums[..., k + 1] - sums[..., j]) / (k + 1 - j) for k in range(i, count)], 0)
            for j in range(i + 1)
        ]
        fitted[..., i] = np.max(means, 0)
    return fitted


def labels_needed(counts: list[int], curve: Floats, score: float) -> float:
    """Return how many labels a monotone curve needs for a score, linear in log labels.

    inf: more than the largest count, beyond the data. 0: the smallest count already reaches it.

    >>> labels_needed([10, 1000], np.array([0.5, 0.9]), 0.7)
    100.0
    >>> labels_needed([10, 1000], np.array([0.5, 0.9]), 0.95)
    inf
    """
    if score > curve[-1]:
        return math.inf
    if score <= curve[0]:
        return 0.0 if score < curve[0] else float(counts[0])
    after = int(np.argmax(curve >= score))
    before = after - 1
    part = (score - curve[before]) / (curve[after] - curve[before])
    low, high = math.log(counts[before]), math.log(counts[after])
    return round(math.exp(low + part * (high - low)), 6)
