"""Which word of a text each token belongs to, and windows of tokens that end between words.

L  tokens of a text
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.utils.rng import Longs


def token_words(words: Sequence[str], spans: Sequence[tuple[int, int]]) -> Longs:
    """Find the word of each token of a text, the words joined by spaces; -1: none.

    >>> token_words(["a", "bats"], [(0, 1), (2, 5), (5, 6)]).tolist()
    [0, 1, 1]
    """  # (L,)
    lengths = np.array([len(word) for word in words])
    begins = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    last = np.array([end - 1 for _, end in spans], dtype=np.int64)
    owners = np.searchsorted(begins, last, side="right") - 1
    inside = (owners >= 0) & (last < begins[owners] + lengths[owners])
    return np.where(inside, owners, -1)


def word_windows(owners: Longs, room: int) -> list[tuple[int, int, Longs]]:
    """Split a text between words into windows of at most `room` tokens: begin, end, words.

    A word that is longer than a window is split; its later tokens have no word (-1).

    >>> [(begin, end, list(map(int, words))) for begin, end, words in
    ...     word_windows(np.array([0, 1, 1, 2, 2, 2]), 2)]
    [(0, 1, [0]), (1, 3, [1, 1]), (3, 5, [2, 2]), (5, 6, [-1])]
    """
    parts: list[tuple[int, int, Longs]] = []
    begin, size = 0, len(owners)
    while begin < size or not parts:
        end = min(size, begin + room)
        while begin < end < size and owners[end] == owners[end - 1]:
            end -= 1
        if end <= begin:  # one word longer than a window
            end = min(size, begin + room)
        seen = owners[begin:end].copy()
        if begin and len(seen) and owners[begin] == owners[begin - 1]:
            seen[seen == owners[begin]] = -1  # the rest of a split word
        parts.append((begin, end, seen))
        begin = end
    return parts
