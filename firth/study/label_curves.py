"""Curves of scores over numbers of labels: how many labels one method needs to reach another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from firth.study.engine.statistics import Scores
from firth.study.monotone import isotonic, labels_needed
from firth.utils.rng import Floats

Curves = Mapping[tuple[str, int], Scores]  # by method and number of labels


@dataclass(frozen=True)
class NeededLabels:
    """A number of labels with its interval; inf: beyond the data; 0: below it."""

    value: float
    low: float
    high: float
    counts: Sequence[int]  # the numbers of labels of the curve

    @property
    def text(self) -> str:
        """The number and its interval in words."""
        shown = {end: _shown(end, self.counts) for end in (self.value, self.low, self.high)}
        if self.low == self.high:
            return shown[self.value]
        return f"{shown[self.value]} ({shown[self.low]} to {shown[self.high]})"


def labels_to_reach(curves: Curves, target: tuple[str, int], method: str) -> NeededLabels:
    """Compute how many labels a method needs for the score of `target`: a method with some labels.

    Both curves are made monotone on each resample of seeds and examples, since more labels can
    only help; a score above the whole curve is beyond the data.
    """
    places, fitted = _fitted(curves, target[0])
    wanted = fitted[:, places.index(target[1])]  # (1 + R,)
    counts, others = _fitted(curves, method)
    needed = np.array(
        [labels_needed(counts, row, score) for row, score in zip(others, wanted, strict=True)]
    )
    low, high = np.quantile(needed[1:], (0.025, 0.975), method="nearest")
    first = float(needed[0])
    return NeededLabels(first, float(min(low, first)), float(max(high, first)), counts)


def _fitted(curves: Curves, method: str) -> tuple[list[int], Floats]:
    """Return the numbers of labels, and the monotone curve and its resamples, (1 + R, K)."""
    own = {count: scores for (name, count), scores in curves.items() if name == method}
    values = np.array([[scores.value for scores in own.values()]])
    samples = np.stack([scores.resampled for scores in own.values()], axis=1)
    return list(own), isotonic(np.concatenate([values, samples]))


def _shown(labels: float, counts: Sequence[int]) -> str:
    if labels == math.inf:
        return f"more than {counts[-1]:,}"
    return f"fewer than {counts[0]:,}" if labels == 0 else f"{_rounded(labels):,}"


def _rounded(labels: float) -> int:
    """Round to two digits.

    >>> _rounded(2345.6), _rounded(7.4)
    (2300, 7)
    """
    digits = max(0, math.floor(math.log10(labels)) - 1)
    return int(round(labels, -digits))


def finite(value: float) -> float | None:
    """Return a number for JSON: None for what is beyond the data."""
    return float(value) if math.isfinite(value) else None
