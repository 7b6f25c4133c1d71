"""Co-occurrence counts of words (Pennington et al. 2014, section 4.2).

Two words at distance d within a window add 1 / d to the count of their pair, in both directions.
Pairs are counted segment by segment; about 16 bytes per distinct pair stay in memory.

N  tokens of a segment     P  distinct pairs of words
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from firth.training.word_vectors.token_segments import Segment
from firth.utils.rng import Floats, Longs

_DISTANCE_BITS = 8  # of a key: the window has at most 255 words


class Cooccurrences(NamedTuple):
    """Counts of unordered pairs of words: the matrix is symmetric."""

    first: Longs  # (P,) the smaller id
    second: Longs  # (P,)
    counts: Floats  # (P,)


class _Counted(NamedTuple):
    keys: Longs  # (P,) sorted: first * vocab_size + second
    weights: Floats  # (P,)


def count_cooccurrences(segments: Iterable[Segment], vocab_size: int, window: int) -> Cooccurrences:
    """Count how often words stand near each other, weighted by 1 / distance.

    >>> text = np.array([0, 1, 0, 2], dtype=np.int32)  # a b a c
    >>> segment = Segment(text, np.zeros(4, dtype=np.int32), np.arange(4))
    >>> first, second, counts = count_cooccurrences([segment], vocab_size=3, window=2)
    >>> {(int(i), int(j)): float(x) for i, j, x in zip(first, second, counts)}
    {(0, 0): 1.0, (0, 1): 2.0, (0, 2): 1.0, (1, 2): 0.5}
    """
    runs: list[_Counted] = []
    for segment in segments:
        runs.append(_count_segment(segment, vocab_size, window))
        while len(runs) > 1 and len(runs[-2].keys) <= 2 * len(runs[-1].keys):
            runs.append(_merge(runs.pop(), runs.pop()))
    empty = _Counted(np.empty(0, dtype=np.int64), np.empty(0))
    while len(runs) > 1:
        runs.append(_merge(runs.pop(), runs.pop()))
    keys, weights = runs[0] if runs else empty
    first, second = np.divmod(keys, vocab_size)
    # A word beside itself is a pair in both directions, and both are the same entry of the matrix.
    return Cooccurrences(first, second, np.where(first == second, 2 * weights, weights))


def _count_segment(segment: Segment, vocab_size: int, window: int) -> _Counted:
    tokens, documents = segment.tokens.astype(np.int64), segment.documents
    found = []
    for distance in range(1, window + 1):
        same = documents[:-distance] == documents[distance:]
        left, right = tokens[:-distance][same], tokens[distance:][same]
        keys = np.minimum(left, right) * vocab_size + np.maximum(left, right)
        found.append(keys << _DISTANCE_BITS | distance)
    joined = np.sort(np.concatenate(found))
    keys, distances = joined >> _DISTANCE_BITS, joined & (1 << _DISTANCE_BITS) - 1
    return _sum_equal(keys, 1 / distances)


def _merge(one: _Counted, other: _Counted) -> _Counted:
    keys = np.concatenate((one.keys, other.keys))
    order = np.argsort(keys, kind="stable")  # merges sorted runs in linear time
    return _sum_equal(keys[order], np.concatenate((one.weights, other.weights))[order])


def _sum_equal(keys: Longs, weights: Floats) -> _Counted:
    """Add the weights of equal keys, which are neighbours."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return _Counted(keys[starts], np.add.reduceat(weights, starts) if len(starts) else weights)
