"""Windows over the tokens of a long text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from firth.utils.rng import Longs


def window_spans(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Return begin and end of each window over `length` tokens; an empty text has one window.

    Windows start `stride` tokens apart; with a stride of `size` they do not overlap.

    >>> window_spans(10, size=4, stride=2), window_spans(3, size=4, stride=4)
    ([(0, 4), (2, 6), (4, 8), (6, 10)], [(0, 3)])
    """
    count = 1 + max(0, -(-(length - size) // stride))
    return [(i * stride, min(length, i * stride + size)) for i in range(count)]


def sliding_windows(
    pieces: Iterable[Longs], context: int, stride: int, known: int = 1
) -> Iterator[tuple[Longs, int]]:
    """Yield each window of `context` tokens and how many at its beginning are not scored.

    Windows start `stride` tokens apart, so every token is scored once, and after the first window
    with at least `context - stride` previous tokens. `known` tokens of the first window are not
    scored: the first token has no context. The text may come in pieces (..., L) of any length; at
    most one window and one piece are in memory.

    >>> text = [np.array([10, 11, 12]), np.array([13, 14, 15, 16])]
    >>> for window, known in sliding_windows(text, context=4, stride=2):
    ...     print(window[:known].tolist(), window[known:].tolist())
    [10] [11, 12, 13]
    [12, 13] [14, 15]
    [14, 15] [16]
    """
    held: Longs | None = None
    for piece in pieces:
        held = piece if held is None else np.concatenate([held, piece], axis=-1)
        while held.shape[-1] > context:
            yield held[..., :context], known
            held, known = held[..., stride:], context - stride
    if held is not None and held.shape[-1] > known:
        yield held, known
