"""Figures, each with the interval in which another set of such examples would have put it.

A metric here is a function of weights: how often each example counts. All ones give the figure
itself; how often each is drawn, when as many are drawn with replacement, gives the figure of a set
that might as well have been collected (the bootstrap, Efron 1979). Examples are scored once, and a
resample only weighs them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firth.draws import Floats, Longs, derive
from firth.errors import InputError, MismatchError, Misuse

Name = TypeVar("Name", bound=Hashable)
Weights = Floats  # (resamples, examples)

_TAILS = (2.5, 97.5)  # per cent: 95 % lie between
_CELLS = 1 << 16  # weights at a time: they stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A metric's value, and the 95 % interval that the choice of examples leaves it."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> str:
        """The interval, for people.

        >>> Figure(value=0.5, low=0.25, high=0.75).interval, Figure(value=1, low=1, high=1).interval
        ('0.2500 to 0.7500', 'cannot be told')
        """
        if self.low == self.high:  # every example says the same, so no resample differs
            return "cannot be told"
        return f"{self.low:.4f} to {self.high:.4f}"


def plain_figures(figures: Mapping[str, Figure]) -> dict[str, dict[str, float]]:
    """Figures as plain JSON values."""
    return {name: asdict(figure) for name, figure in figures.items()}


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """How an interval is found: the number of resamples, and the seed that they are drawn with."""

    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 1:
            raise Misuse(f"A bootstrap needs at least one resample, not {self.resamples}.")


def estimate(
    score: Callable[[Weights], Mapping[Name, Floats]],
    examples: int,
    bootstrap: Bootstrap = Bootstrap(),
    *,
    width: int = 0,
) -> dict[Name, Figure]:
    """Figures of a function that gives named values (resamples,) for weights (resamples, examples).

    ``width`` bounds the memory: how many numbers the function makes for each resample, where that
    is more than there are examples. An interval always holds its value: where the percentiles of a
    skewed metric leave it outside, the interval reaches up to it.

    >>> grades = np.array([1.0, 0.0, 1.0, 1.0])
    >>> estimate(lambda weights: {"mean": weights @ grades / 4}, 4)
    {'mean': Figure(value=0.75, low=0.25, high=1.0)}
    """
    if not examples:
        raise InputError("There are no examples to score: give at least one.")
    values = score(np.ones((1, examples)))
    samples = [score(weights) for weights in resample(examples, bootstrap, width)]
    figures = {}
    for name, (value,) in values.items():
        low, high = np.percentile(np.concatenate([sample[name] for sample in samples]), _TAILS)
        figures[name] = Figure(
            value=float(value), low=float(min(low, value)), high=float(max(high, value))
        )
    return figures


def resample(examples: int, bootstrap: Bootstrap, width: int = 0) -> Iterator[Weights]:
    """How often each example is drawn in each resample, a block of resamples at a time.

    >>> [block.sum(axis=1).tolist() for block in resample(5, Bootstrap(resamples=3))]
    [[5.0, 5.0, 5.0]]
    """
    at_once = max(1, _CELLS // max(examples, width))
    for first in range(0, bootstrap.resamples, at_once):
        numbers = np.arange(first, min(first + at_once, bootstrap.resamples))
        keys = derive(derive(bootstrap.seed, numbers)[:, None], np.arange((examples + 1) // 2))
        # Each half of a hash, as a fraction of all that it could be, says which example is drawn.
        halves = keys.view(np.uint32)[:, :examples].astype(np.uint64)
        places = (halves * np.uint64(examples) >> np.uint64(32)).astype(np.int64)
        places += np.arange(len(numbers))[:, None] * examples
        counts = np.bincount(places.reshape(-1), minlength=places.size)
        yield counts.reshape(places.shape).astype(np.float64)


def means(
    columns: Mapping[Name, ArrayLike], bootstrap: Bootstrap = Bootstrap()
) -> dict[Name, Figure]:
    """The mean of each column of scores, one score for each example.

    >>> means({"exact": [100, 100, 0, 100]})
    {'exact': Figure(value=75.0, low=25.0, high=100.0)}
    """
    scores = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)

    def score(weights: Weights) -> dict[Name, Floats]:
        return dict(zip(columns, (weights @ scores / len(scores)).T, strict=True))

    return estimate(score, len(scores), bootstrap)


def tally(rows: Longs, groups: Longs, count: int) -> Callable[[Weights], Floats]:
    """How much weight each of ``count`` groups has, when entry i is of an example and a group.

    >>> by_label = tally(rows=np.array([0, 1, 1]), groups=np.array([2, 0, 2]), count=3)
    >>> by_label(np.array([[1.0, 1.0], [0.0, 2.0]])).tolist()
    [[1.0, 0.0, 2.0], [2.0, 0.0, 2.0]]
    """
    order = np.argsort(groups, kind="stable")
    present, starts = np.unique(groups[order], return_index=True)
    rows = rows[order]

    def total(weights: Weights) -> Floats:
        sums = np.zeros((len(weights), count))
        if len(rows) == len(present):  # nothing to add up
            sums[:, present] = weights[:, rows]
        else:
            sums[:, present] = np.add.reduceat(weights[:, rows], starts, axis=1)
        return sums  # (resamples, count)

    return total


def divide(numerators: Floats, denominators: Floats) -> Floats:
    """Divide, where nothing by nothing is 0: the field's convention for what is undefined.

    >>> divide(np.array([1.0, 0.0]), np.array([2.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    out = np.zeros(np.broadcast_shapes(numerators.shape, denominators.shape))
    return np.divide(numerators, denominators, out=out, where=denominators != 0)


def check_pairs(gold: Sized, predicted: Sized) -> None:
    """Refuse predictions that are not one for each gold value.

    >>> check_pairs([1, 0], [1])
    Traceback (most recent call last):
    firth.errors.MismatchError: There are 2 gold values but 1 predictions: each needs one.
    """
    if len(gold) != len(predicted):
        raise MismatchError(
            f"There are {len(gold):,} gold values but {len(predicted):,} predictions: "
            "each needs one."
        )


def plain(values: Sequence[Any] | NDArray[Any]) -> list[Any]:
    """A list of Python's own values, also from an array.

    >>> plain(np.array([1, 2]))
    [1, 2]
    """
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
