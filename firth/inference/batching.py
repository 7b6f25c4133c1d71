"""Batching by length, and the error for NaN outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firth.utils.errors import FirthError


def batch_by_length(shapes: Sequence[tuple[int, ...]], max_tokens: int) -> Iterator[list[int]]:
    """Group rows of similar length, longest first, into batches of at most `max_tokens`.

    A shape is the length of a row, or of its parts. A longer row gets a batch of its own.

    >>> list(batch_by_length([(3,), (9,), (2,), (8,)], max_tokens=17))
    [[1, 3], [0, 2]]
    """
    batch: list[int] = []
    tokens = 0
    for i in sorted(range(len(shapes)), key=shapes.__getitem__, reverse=True):
        size = sum(shapes[i])
        if batch and tokens + size > max_tokens:
            yield batch
            batch, tokens = [], 0
        batch.append(i)
        tokens += size
    if batch:
        yield batch


def nan_error() -> FirthError:
    """Return the error for logits that are NaN."""
    return FirthError(
        "The model's logits are NaN: its weights are damaged, or too large for this --dtype; try "
        "float32."
    )
