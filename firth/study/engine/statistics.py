"""Intervals of a study: seeds and examples are resampled together (bootstrap, Efron 1979).

A score is a ratio of two sums over examples: accuracy (right answers over answers), entity F1
(2 tp over 2 tp + fp + fn), loss (nats over tokens), bits per byte. Repeated runs give a matrix of
seeds and examples. A resample draws seeds and examples with replacement, so that its value varies
as it would with other seeds on other examples. Two scores are compared on the same resamples.

R  resamples     S  seeds     n  examples
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from firth.metrics.bootstrap import Bootstrap, Metric, resample, wilson
from firth.utils.rng import Floats

RESAMPLES = 2000
SEEDS, EXAMPLES = 0, 1  # random streams
FEW = 10  # right or wrong answers, below which a proportion gets a Wilson interval
LEVEL = 0.05  # of significance; intervals cover 1 - LEVEL
Name = TypeVar("Name")


@dataclass(frozen=True, eq=False)
class Scores:
    """The numerators and denominators of a score for each seed and example."""

    numerators: Floats  # (S, n)
    denominators: Floats  # (S, n)
    seeds: tuple[int, ...] = ()  # the place of each row among all seeds; (): none is missing

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], seeds: Sequence[int] = ()) -> Scores:
        """Stack what cells of several seeds returned.

        >>> Scores.of([{"numerators": [1, 0], "denominators": [1, 1]}]).value
        0.5
        """
        tops, bottoms = (
            np.array([row[name] for row in rows], dtype=np.float64)
            for name in ("numerators", "denominators")
        )
        return cls(tops, bottoms, tuple(seeds))

    def examples(self, chosen: slice) -> Scores:
        """Return the scores of some of the examples."""
        return Scores(self.numerators[:, chosen], self.denominators[:, chosen], self.seeds)

    @property
    def seed_places(self) -> tuple[int, ...]:
        """The place of each row among all seeds."""
        return self.seeds or tuple(range(len(self.numerators)))

    def with_seeds(self, places: Sequence[int]) -> Scores:
        """Return the scores of some of the seeds."""
        if tuple(places) == self.seed_places:
            return self
        rows = [self.seed_places.index(place) for place in places]
        return Scores(self.numerators[rows], self.denominators[rows], tuple(places))

    @property
    def value(self) -> float:
        """The mean over seeds of the ratio."""
        return float(np.mean(self.by_seed))

    @property
    def by_seed(self) -> Floats:
        """The ratio of each seed, (S,)."""
        return np.asarray(self.numerators.sum(1) / np.maximum(self.denominators.sum(1), 1e-12))

    @cached_property
    def resampled(self) -> Floats:
        """The value of each resample, (R,).

        Scores of the same shape are resampled alike, which makes differences paired. The bootstrap
        of a few seeds varies too little: their part is widened to the interval of Student's t.
        """
        seeds, examples = self.numerators.shape
        if not np.isfinite(self.numerators).all():
            return np.full(RESAMPLES, np.nan)
        blocks = [
            (weights @ self.numerators.T) / np.maximum(weights @ self.denominators.T, 1e-12)
            for weights in resample(examples, Bootstrap(resamples=RESAMPLES, seed=EXAMPLES))
        ]
        ratios = np.concatenate(blocks)  # (R, S)
        chosen = resample(seeds, Bootstrap(resamples=RESAMPLES, seed=SEEDS))
        weights = np.concatenate(list(chosen))  # (R, S)
        same_seeds = ratios.mean(1)
        other_seeds = (weights * ratios).sum(1) / seeds
        return np.asarray(same_seeds + few_seeds_factor(seeds) * (other_seeds - same_seeds))  # (R,)

    @property
    def is_proportion(self) -> bool:
        """Whether each example is right or wrong."""
        return bool(np.isin(self.numerators, (0.0, 1.0)).all() and (self.denominators == 1.0).all())

    @property
    def is_fraction(self) -> bool:
        """Whether the score is between 0 and 1."""
        return bool(((self.numerators >= 0) & (self.numerators <= self.denominators)).all())

    def metric(self) -> Metric:
        """Compute the value with its 95 % interval; of a proportion, at least that of Wilson."""
        found, examples = interval(self.value, self.resampled), self.numerators.shape[1]
        low, high = found.low, found.high
        if low is None or high is None or not self.is_fraction:
            return found
        if self.is_proportion and min(self.value, 1 - self.value) * examples < FEW:
            ends = wilson(self.value, examples)
            low, high = min(low, ends[0]), max(high, ends[1])
        return replace(found, low=max(0.0, low), high=min(1.0, high))


def few_seeds_factor(seeds: int) -> float:
    """Return the factor by which the bootstrap's spread between few seeds is too small.

    A bootstrap of S values has the variance of S - 1 degrees of freedom divided by S, and the
    quantiles of a normal distribution in place of Student's t.

    >>> [round(few_seeds_factor(seeds), 2) for seeds in (1, 3, 5, 50)]
    [1.0, 2.69, 1.58, 1.04]
    """
    from scipy import stats

    if seeds < 2:
        return 1.0
    quantiles = stats.t.ppf(1 - LEVEL / 2, seeds - 1) / stats.norm.ppf(1 - LEVEL / 2)
    return float(quantiles * math.sqrt(seeds / (seeds - 1)))


def score_values(numerators: Any, denominators: Any = None) -> dict[str, list[float]]:
    """Return a score as JSON values of a cell; without denominators, they are ones.

    >>> score_values([1, 0])
    {'numerators': [1.0, 0.0], 'denominators': [1.0, 1.0]}
    """
    top = np.asarray(numerators, dtype=np.float64)
    bottom = np.ones_like(top) if denominators is None else np.asarray(denominators, np.float64)
    return {"numerators": top.tolist(), "denominators": bottom.tolist()}


def interval(value: float, samples: Floats) -> Metric:
    """Return a value with the 95 % interval of its resamples."""
    if not np.isfinite(samples).all() or not math.isfinite(value):
        return Metric(value=value, low=None, high=None, reason="not finite")
    low, high = np.quantile(samples, (LEVEL / 2, 1 - LEVEL / 2))
    return Metric(value=value, low=min(float(low), value), high=max(float(high), value))


def metric_texts(metric: Metric, scale: float = 1.0, digits: int = 3) -> tuple[str, str]:
    """Format a value and its interval for a table.

    >>> metric_texts(Metric(value=0.5, low=0.25, high=0.75), digits=2)
    ('0.50', '0.25 to 0.75')
    """
    value = f"{scale * metric.value:.{digits}f}"
    if metric.low is None or metric.high is None:
        return value, f"not available ({metric.reason})"
    return value, f"{scale * metric.low:.{digits}f} to {scale * metric.high:.{digits}f}"


@dataclass(frozen=True)
class Difference:
    """How much higher one score is than another, with its p-value."""

    metric: Metric
    p: float  # two-sided, that the difference is 0

    @property
    def holds(self) -> bool | None:
        """Whether it is positive; None if the resamples cannot decide."""
        if self.p >= LEVEL:
            return None
        return self.metric.value > 0

    @property
    def opposite(self) -> Difference:
        """How much lower it is."""
        one = self.metric
        low, high = (None if end is None else -end for end in (one.high, one.low))
        return Difference(replace(one, value=-one.value, low=low, high=high), self.p)


def difference(first: Scores, second: Scores) -> Difference:
    """Compare two scores on the same examples and seeds.

    >>> right = Scores(np.ones((3, 50)), np.ones((3, 50)))
    >>> wrong = Scores(np.zeros((3, 50)), np.ones((3, 50)))
    >>> difference(right, wrong).holds
    True
    """
    first, second = same_seeds([first, second])
    found = of_resamples(first.value - second.value, first.resampled - second.resampled)
    value, low, high = found.metric.value, found.metric.low, found.metric.high
    if low is None or high is None or not (first.is_fraction and second.is_fraction):
        return found
    if high == low and first.is_proportion:
        # No two examples differ: the rule of three bounds how often they would.
        margin = 3 / first.numerators.shape[1]
        low, high = value - margin, value + margin
    return replace(found, metric=replace(found.metric, low=max(-1.0, low), high=min(1.0, high)))


def unpaired_difference(first: Scores, second: Scores) -> Difference:
    """Compare two scores on different examples: their resamples are independent."""
    order = np.random.default_rng(0).permutation(RESAMPLES)
    samples = first.resampled - second.resampled[order]
    return of_resamples(first.value - second.value, samples)


def same_seeds(scores: Sequence[Scores]) -> list[Scores]:
    """Return the scores of the seeds that all of them have; a run of another may have failed."""
    common = [p for p in scores[0].seed_places if all(p in one.seed_places for one in scores)]
    return [one.with_seeds(common) for one in scores] if common else list(scores)


def of_resamples(value: float, samples: Floats) -> Difference:
    """Return a difference with its interval and p-value from its resamples."""
    if not math.isfinite(value) or not np.isfinite(samples).all():
        return Difference(interval(value, samples), 1.0)
    tail = min(float(np.mean(samples <= 0)), float(np.mean(samples >= 0)))
    p = min(1.0, max(2 * tail, 1 / len(samples)))
    return Difference(interval(value, samples), p)


def mean_over_seeds(values: Floats) -> Difference:
    """Return the mean of one value per seed, with the interval and p-value of Student's t (1908).

    A bootstrap of five values alone would have intervals that are too narrow.

    >>> found = mean_over_seeds(np.array([1.0, 2.0, 3.0])).metric
    >>> round(found.low, 3), found.value, round(found.high, 3)
    (-0.484, 2.0, 4.484)
    """
    from scipy import stats

    mean, count = float(values.mean()), len(values)
    if count < 2:
        return Difference(Metric(value=mean, low=None, high=None, reason="only one seed"), 1.0)
    error = float(values.std(ddof=1)) / math.sqrt(count)
    if error < 1e-9:  # all seeds agree
        return Difference(Metric(value=mean, low=mean, high=mean), float(abs(mean) < 1e-9))
    margin = float(stats.t.ppf(1 - LEVEL / 2, count - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1))
    return Difference(Metric(value=mean, low=mean - margin, high=mean + margin), p)


def holm(differences: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """Correct the p-values of several comparisons (Holm 1979).

    >>> one = Metric(value=1.0, low=0.5, high=1.5)
    >>> found = holm({"a": Difference(one, 0.01), "b": Difference(one, 0.04)})
    >>> [each.p for each in found.values()]
    [0.02, 0.04]
    """
    order = sorted(differences, key=lambda name: differences[name].p)
    adjusted: dict[Name, Difference] = {}
    highest = 0.0
    for place, name in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * differences[name].p))
        adjusted[name] = Difference(differences[name].metric, highest)
    return {name: adjusted[name] for name in differences}


def resampled_function(
    scores: Mapping[Name, Scores], compute: Callable[[Mapping[Name, float]], float]
) -> Difference:
    """Compute a statistic of several scores with its interval: of each resample, and of all."""
    scores = dict(zip(scores, same_seeds(list(scores.values())), strict=True))
    samples = {name: score.resampled for name, score in scores.items()}
    rows = zip(*samples.values(), strict=True)
    found = [compute(dict(zip(samples, row, strict=True))) for row in rows]
    value = compute({name: score.value for name, score in scores.items()})
    return of_resamples(value, np.array(found))
