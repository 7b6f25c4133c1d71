"""Batching by length, and the error for NaN outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from firth.utils.errors import NonFiniteError
from firth.utils.streams import bounded_batches

BATCH_TOKENS = 8192


def batch_by_length(
    shapes: Sequence[tuple[int, ...]], max_tokens: int = BATCH_TOKENS, *, padded: bool = False
) -> Iterator[list[int]]:
    """Group rows of similar length, longest first, into batches of at most `max_tokens`.

    A shape is the length of a row, or of its parts. A longer row gets a batch of its own. With
    `padded`, padding counts as well.

    >>> list(batch_by_length([(3,), (9,), (2,), (8,)], max_tokens=17))
    [[1, 3], [0, 2]]
    """
    order = sorted(range(len(shapes)), key=shapes.__getitem__, reverse=True)
    return bounded_batches(
        order, lambda i: sum(shapes[i]), max_size=max_tokens, max_items=sys.maxsize, padded=padded
    )


def nan_error() -> NonFiniteError:
    """Return the error for logits that are NaN or infinite."""
    return NonFiniteError(
        "The model's logits are NaN or infinite: its weights are damaged, or too large for their "
        "precision; try float32."
    )
