"""Confidence intervals of evaluation metrics: bootstrap (Efron 1979), Wilson for proportions.

A metric is computed by a function of example weights. Weights of one give the metric's value; the
number of times each example occurs in a sample drawn with replacement gives the value on that
resample. Examples are scored once; a resample only changes their weights. Resamples of 20 right
predictions are all right: a proportion near 0 or 1 gets a Wilson interval instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.rng import Floats, Longs, derive_keys

Name = TypeVar("Name", bound=Hashable)
Weights = Floats  # (resamples, examples)

_PERCENTILES = (2.5, 97.5)  # of the resamples: a 95 % interval
_Z = 1.959964  # of the normal distribution: a 95 % interval
_FEW = 10  # successes or failures, below which a proportion gets a Wilson interval
_MAX_WEIGHTS = 1 << 16  # in one block of resamples, so that they fit into the CPU cache


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric's value with its 95 % confidence interval, or the reason why there is none."""

    value: float
    low: float | None
    high: float | None
    reason: str = ""  # why no interval is available

    @property
    def interval(self) -> str:
        """Format the interval for display.

        >>> Metric(value=0.5, low=0.25, high=0.75).interval
        '0.2500 to 0.7500'
        >>> Metric(value=1, low=None, high=None, reason="only one example").interval
        'not available (only one example)'
        """
        return interval_text(asdict(self))


def interval_text(metric: Mapping[str, Any]) -> str:
    """Format the interval of a metric given as JSON values."""
    if metric["low"] is None:
        return f"not available ({metric['reason']})"
    return f"{metric['low']:.4f} to {metric['high']:.4f}"


def metrics_to_json(metrics: Mapping[str, Metric]) -> dict[str, dict[str, Any]]:
    """Convert metrics to plain JSON values."""
    return {name: to_json(metric) for name, metric in metrics.items()}


def to_json(result: Any) -> dict[str, Any]:
    """Convert a metric, or a dataclass with metrics, to plain JSON values.

    >>> to_json(Metric(value=0.5, low=0.25, high=0.75))
    {'value': 0.5, 'low': 0.25, 'high': 0.75}
    """
    return asdict(result, dict_factory=_without_empty_reason)


def _without_empty_reason(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name != "reason" or value}


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Settings of the bootstrap: the number of resamples and the random seed."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise UsageError(f"A bootstrap needs at least one resample, not {self.resamples}.")


def estimate(
    score: Callable[[Weights], Mapping[Name, Floats]],
    examples: int,
    bootstrap: Bootstrap = Bootstrap(),
    *,
    width: int = 0,
    proportions: Collection[Name] = (),
    scale: float = 1.0,
) -> dict[Name, Metric]:
    """Compute metrics with intervals from `score`, which maps weights to named values.

    Weights are (resamples, examples), values (resamples,). ``width`` bounds the memory: how many
    numbers `score` computes for each resample, if more than there are examples. An interval always
    contains its value: where the percentiles of a skewed metric exclude it, it is extended.
    `proportions` are metrics that are the fraction of successes, times `scale`, of the examples.

    >>> grades = np.array([1.0, 0.0, 1.0, 1.0])
    >>> estimate(lambda weights: {"mean": weights @ grades / 4}, 4)
    {'mean': Metric(value=0.75, low=0.25, high=1.0, reason='')}
    """
    if not examples:
        raise InputError("There are no examples to score: give at least one.")
    values = score(np.ones((1, examples)))
    samples = [score(weights) for weights in resample(examples, bootstrap, width)]
    metrics = {}
    for name, (value,) in values.items():
        low, high = np.percentile(
            np.concatenate([sample[name] for sample in samples]), _PERCENTILES
        )
        metrics[name] = _metric(float(value), float(low), float(high), examples)
        if name in proportions and min(value, scale - value) * examples < _FEW * scale:
            low, high = (scale * end for end in wilson(float(value) / scale, examples))
            metrics[name] = replace(metrics[name], low=low, high=high, reason="")
    return metrics


def _metric(value: float, low: float, high: float, examples: int) -> Metric:
    """Make a metric of its percentiles; without an interval if they are equal."""
    low, high = min(low, value), max(high, value)
    if not math.isclose(low, high, rel_tol=1e-9, abs_tol=1e-12):
        return Metric(value=value, low=low, high=high)
    reason = "only one example" if examples == 1 else "every resample has the same value"
    return Metric(value=value, low=None, high=None, reason=reason)


def wilson(proportion: float, examples: int) -> tuple[float, float]:
    """Compute the 95 % interval of a proportion (Wilson 1927), which is never empty.

    >>> [round(end, 4) for end in wilson(1.0, 20)]
    [0.8389, 1.0]
    """
    shrinkage = 1 + _Z**2 / examples
    centre = (proportion + _Z**2 / (2 * examples)) / shrinkage
    variance = proportion * (1 - proportion) / examples + (_Z / (2 * examples)) ** 2
    margin = _Z * math.sqrt(variance) / shrinkage
    return max(0.0, min(centre - margin, proportion)), min(1.0, max(centre + margin, proportion))


def resample(examples: int, bootstrap: Bootstrap, width: int = 0) -> Iterator[Weights]:
    """Yield blocks of resamples: how often each example is drawn, (resamples, examples).

    >>> [block.sum(axis=1).tolist() for block in resample(5, Bootstrap(resamples=3))]
    [[5.0, 5.0, 5.0]]
    """
    at_once = max(1, _MAX_WEIGHTS // max(examples, width))
    for first in range(0, bootstrap.resamples, at_once):
        numbers = np.arange(first, min(first + at_once, bootstrap.resamples))
        keys = derive_keys(
            derive_keys(bootstrap.seed, numbers)[:, None], np.arange((examples + 1) // 2)
        )
        # Each 32-bit half of a hash is scaled to the index of the example that is drawn.
        places = keys.view(np.uint32)[:, :examples].astype(np.int64)
        places *= examples
        places >>= 32
        places += np.arange(len(numbers))[:, None] * examples
        counts = np.bincount(places.reshape(-1), minlength=places.size)
        yield counts.reshape(places.shape).astype(np.float64)


def means(
    columns: Mapping[Name, ArrayLike],
    bootstrap: Bootstrap = Bootstrap(),
    *,
    scale: float = 1.0,
    graded: bool = False,
) -> dict[Name, Metric]:
    """Compute the mean of each column of scores from 0 to `scale`, one per example.

    Columns of 0 and `scale` alone are proportions, unless scores are `graded`: between the two,
    too, even if none of these examples has such a score.

    >>> means({"loss": [4.5, 4.5, 0.5, 4.5]})
    {'loss': Metric(value=3.5, low=1.5, high=4.5, reason='')}
    """
    scores = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)

    def score(weights: Weights) -> dict[Name, Floats]:
        return dict(zip(columns, (weights @ scores / len(scores)).T, strict=True))

    binary = np.isin(scores, (0.0, scale))  # (examples, columns)
    proportions = [name for i, name in enumerate(columns) if binary[:, i].all() and not graded]
    return estimate(score, len(scores), bootstrap, proportions=proportions, scale=scale)


def tally(rows: Longs, groups: Longs, count: int) -> Callable[[Weights], Floats]:
    """Make a function that sums weights by group; entry i belongs to rows[i] and groups[i].

    >>> by_label = tally(rows=np.array([0, 1, 1]), groups=np.array([2, 0, 2]), count=3)
    >>> by_label(np.array([[1.0, 1.0], [0.0, 2.0]])).tolist()
    [[1.0, 0.0, 2.0], [2.0, 0.0, 2.0]]
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    rows = rows[order]

    def total(weights: Weights) -> Floats:
        sums = np.zeros((len(weights), count))
        if len(rows) == len(present):  # one entry per group
            sums[:, present] = weights[:, rows]
        else:
            sums[:, present] = np.add.reduceat(weights[:, rows], starts, axis=1)
        return sums  # (resamples, count)

    return total


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Divide elementwise; 0 / 0 is 0, the usual convention for undefined metrics.

    >>> divide(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    out = np.zeros(np.broadcast_shapes(numerators.shape, denominators.shape))
    return np.divide(numerators, denominators, out=out, where=denominators != 0)


def check_pairs(gold: Sized, predicted: Sized) -> None:
    """Raise MismatchError unless there is one prediction per gold value.

    >>> check_pairs([1, 0], [1])
    Traceback (most recent call last):
    firth.utils.errors.MismatchError: There are 2 gold values but 1 predictions: each needs one.
    """
    if len(gold) != len(predicted):
        raise MismatchError(
            f"There are {len(gold):,} gold values but {len(predicted):,} predictions: "
            "each needs one."
        )


def plain(values: Sequence[Any] | NDArray[Any]) -> list[Any]:
    """Convert a sequence or array to a list of Python values.

    >>> plain(np.array([1, 2]))
    [1, 2]
    """
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def finite_numbers(values: ArrayLike, what: str) -> Floats:
    """Convert values to an array; raise InputError for one that is not a finite number."""
    try:
        numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"Each {what} must be a number.") from None
    for place in np.flatnonzero(~np.isfinite(numbers)):
        raise InputError(
            f"The {what} of example {place + 1:,} is {numbers[place]}: not a finite number."
        )
    return numbers
