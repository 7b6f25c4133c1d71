"""Randomness without state: every draw is a hash of (seed, epoch, position).

No generator is carried along, so a draw does not depend on what was drawn before it, on the number
of workers, or on how sequences are packed. Arrays of draws come from arrays of keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(hashes: Keys) -> Keys:
    """Make every bit depend on every bit, in place: the finaliser of splitmix64 (Vigna 2015)."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def derive(keys: ArrayLike, numbers: ArrayLike) -> Keys:
    """A new key from each key and number; the two are broadcast against each other.

    >>> derive(7, [0, 1]).tolist() == [derive(7, 0).item(), derive(7, 1).item()]
    True
    """
    keys, numbers = np.asarray(keys, dtype=np.uint64), np.asarray(numbers, dtype=np.uint64)
    shape = np.broadcast_shapes(keys.shape, numbers.shape)
    # Arrays wrap around silently, single numbers with a warning.
    return mix(np.atleast_1d(keys) + (np.atleast_1d(numbers) + 1) * _GOLDEN).reshape(shape)


def uniform(keys: Keys, purpose: int) -> Floats:
    """A number from 0 to below 1 for each key; another purpose gives independent numbers.

    >>> bool(0 <= uniform(derive(0, 5), purpose=1) < 1)
    True
    """
    return (derive(keys, purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniforms(key: int, purpose: int, count: int) -> list[float]:
    """What `uniform(derive(key, range(count)), purpose)` gives, faster for a few.

    >>> uniforms(7, 1, 3) == uniform(derive(7, range(3)), 1).tolist()
    True
    """
    return [
        (derive_one(derive_one(key, number), purpose) >> 11) * 2.0**-53 for number in range(count)
    ]


def derive_one(key: int, number: int) -> int:
    """What `derive` gives for one key and one number, faster.

    >>> derive_one(7, 3) == int(derive(7, 3))
    True
    """
    x = key + (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31


def choose(keys: Keys, purpose: int, sizes: Longs, counts: Longs) -> Bools:
    """Of each group of places, so many chosen at random: which of all places are.

    >>> chosen = choose(derive(0, [1, 2]), 0, sizes=np.array([3, 4]), counts=np.array([1, 4]))
    >>> int(chosen[:3].sum()), chosen[3:].tolist()
    (1, [True, True, True, True])
    """
    starts = np.cumsum(sizes) - sizes
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ranks = np.arange(len(groups)) - starts[groups]  # of a place in its group, from the left
    draws = derive(derive(keys[groups], ranks), purpose)
    order = np.argsort(groups.astype(np.uint64) << 40 | draws >> 24)  # by group, then at random
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order[ranks < counts[groups]]] = True  # sorted by group: ranks are those of the draw
    return chosen
