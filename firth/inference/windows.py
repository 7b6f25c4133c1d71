"""A long text as a model reads it: through a window that slides over its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from firth.draws import Longs


def windows(
    pieces: Iterable[Longs], context: int, stride: int, known: int = 1
) -> Iterator[tuple[Longs, int]]:
    """Each window of `context` tokens, and how many at its beginning need not be asked for.

    Windows begin `stride` tokens apart, so every token is asked for once, and all but those of the
    first window with at least `context - stride` tokens before it. Of the first window, `known` are
    not asked for: nothing stands before the first token. The text may come in pieces (..., L) of
    any length; no more of it is held than a window and a piece.

    >>> text = [np.array([10, 11, 12]), np.array([13, 14, 15, 16])]
    >>> for window, known in windows(text, context=4, stride=2):
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
