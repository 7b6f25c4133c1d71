"""Some examples of many: a sample in which every label keeps its share; and examples seen twice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from firth.draws import Floats, Longs, derive
from firth.errors import Misuse
from firth.tasks.reading.examples import Example

QUANTILES = 10  # classes that scores are divided into
SAMPLE = 0x5A3D  # what the draws are for


def stratified(
    labels: Sequence[Any],
    *,
    count: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    leave: int = 0,
) -> tuple[list[int], list[int]]:
    """The places of a sample, and of the rest, both in order.

    Every label keeps its share to within one example, and of every label there is at least one
    where the sample has room for that; then more common labels make the room. Scores (`float`)
    are divided into tenths. Without labels (None for all) the sample is plainly random. At least
    `leave` examples of each label stay in the rest: 1 for a part to be held out, whose labels
    must all be learned. A count above what there is takes everything.

    >>> stratified(["a", "b", "a", "b", "a", "a"], count=3)
    ([1, 2, 4], [0, 3, 5])
    """
    size = _size(len(labels), count, fraction)
    groups = _groups(labels, size)  # (N,)
    there = np.bincount(groups)
    wanted = _apportion(there, np.maximum(there - leave, 0), size)
    draws = derive(derive(seed, SAMPLE), np.arange(len(groups)))
    order = np.lexsort((np.arange(len(groups)), draws, groups))  # by group, then at random
    ranks = np.arange(len(groups)) - (np.cumsum(there) - there)[groups[order]]
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order[ranks < wanted[groups[order]]]] = True
    return np.flatnonzero(chosen).tolist(), np.flatnonzero(~chosen).tolist()


def _size(there: int, count: int | None, fraction: float | None) -> int:
    """How many examples are wanted."""
    if (count is None) == (fraction is None):
        raise Misuse("A sample has a count or a fraction: say one of them.")
    if fraction is not None:
        if not 0 < fraction < 1:
            raise Misuse(f"A fraction is between 0 and 1, not {fraction}.")
        return max(1, round(fraction * there))
    if count is None or count < 1:
        raise Misuse(f"A sample has at least one example, not {count}.")
    return count


def _groups(labels: Sequence[Any], size: int) -> Longs:
    """A number for each example: that of its label, or that of the tenth its score is in."""
    if len(labels) and all(isinstance(label, float) for label in labels):
        order = np.argsort(np.array(labels, dtype=np.float64), kind="stable")
        groups = np.empty(len(labels), dtype=np.int64)
        groups[order] = np.arange(len(labels)) * min(QUANTILES, size, len(labels)) // len(labels)
        return groups
    keys = (tuple(sorted(label)) if isinstance(label, tuple) else label for label in labels)
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _apportion(there: Longs, most: Longs, size: int) -> Longs:
    """How many of each group make a sample of so many: largest remainders, within bounds.

    >>> _apportion(np.array([70, 27, 3]), np.array([70, 27, 3]), 10).tolist()
    [7, 2, 1]
    """
    size = min(size, int(most.sum()))
    shares: Floats = there * (size / max(1, there.sum()))
    least = np.minimum(most, 1) if np.minimum(most, 1).sum() <= size else np.zeros_like(most)
    taken = np.clip(np.floor(shares).astype(np.int64), least, most)
    while (over := int(taken.sum()) - size) != 0:
        if over > 0:
            surplus = np.where(taken > least, taken - shares, -np.inf)
            taken[int(surplus.argmax())] -= 1
        else:
            lacking = np.where(taken < most, shares - taken, -np.inf)
            taken[int(lacking.argmax())] += 1
    return taken


def overlap(train: Iterable[Example], dev: Iterable[Example]) -> int:
    """How many examples of one file have inputs that stand in another, white space aside.

    >>> from firth.tasks.reading.examples import Labelled
    >>> known = [Labelled(text="So  good."), Labelled(text="So bad.")]
    >>> overlap(known, [Labelled(text="So good. "), Labelled(text="so bad.")])
    1
    """
    seen = {_digest(example) for example in train}
    return sum(_digest(example) in seen for example in dev)


def _digest(example: Example) -> bytes:
    parts = (" ".join(part.split()) for part in example.inputs)
    text = "\n".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
