"""Which rows are read together, and that what a network makes of them are numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firth.errors import FirthError


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
