"""Which rows are read together, and that what a network makes of them are numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from firth.errors import FirthError

Item = TypeVar("Item")


def in_windows(
    items: Iterable[Item], size: Callable[[Item], int], most: int, count: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Neighbours together until they are so large, or so many: memory is bounded.

    >>> list(in_windows(["ab", "c", "dddd", "e"], len, most=3))
    [['ab', 'c'], ['dddd'], ['e']]
    """
    window: list[Item] = []
    total = 0
    for item in items:
        window.append(item)
        total += size(item)
        if total >= most or len(window) == count:
            yield window
            window, total = [], 0
    if window:
        yield window


def by_length(shapes: Sequence[tuple[int, ...]], most: int) -> Iterator[list[int]]:
    """Rows of similar length together, the longest first; at most so many tokens, or one row.

    A shape is the length of a row, or those of its parts.

    >>> list(by_length([(3,), (9,), (2,), (8,)], most=17))
    [[1, 3], [0, 2]]
    """
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(shapes)), key=shapes.__getitem__, reverse=True):
        size = sum(shapes[i])
        if batch and tokens + size > most:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += size
    if batch:
        yield batch


def not_numbers() -> FirthError:
    """What is said where a network has no opinion at all."""
    return FirthError(
        "The model's scores are not numbers (NaN): its weights are damaged, or too large for "
        "this --dtype; try float32."
    )
