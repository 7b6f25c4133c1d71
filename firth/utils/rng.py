"""Counter-based random numbers (Salmon et al. 2011): each number is a hash of its key.

A key is derived from the seed, the epoch, the position and so on. There is no generator state, so
a random number does not depend on the numbers drawn before it, on the number of workers, or on how
sequences are packed. All functions work on arrays of keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # the increment of splitmix64


def mix_bits(hashes: Keys) -> Keys:
    """Make every bit depend on every bit, in place: the finalizer of splitmix64 (Vigna 2015)."""
    hashes ^= hashes >> np.uint64(30)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(27)
    hashes *= np.uint64(0x94D049BB133111EB)
    hashes ^= hashes >> np.uint64(31)
    return hashes


def derive_keys(keys: ArrayLike, counters: ArrayLike) -> Keys:
    """Hash each key with a counter to a new key; keys and counters are broadcast.

    >>> derive_keys(7, [0, 1]).tolist() == [derive_keys(7, 0).item(), derive_keys(7, 1).item()]
    True
    """
    keys, counters = np.asarray(keys, dtype=np.uint64), np.asarray(counters, dtype=np.uint64)
    shape = np.broadcast_shapes(keys.shape, counters.shape)
    # NumPy scalars warn about overflow, arrays do not.
    hashes = np.atleast_1d(keys) + (np.atleast_1d(counters) + 1) * _GOLDEN_GAMMA
    return mix_bits(hashes).reshape(shape)


def derive_key(key: int, counter: int) -> int:
    """Compute `derive_keys` for one key and one counter, without NumPy's overhead.

    >>> derive_key(7, 3) == int(derive_keys(7, 3))
    True
    """
    x = key + (counter + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31


def uniform(keys: Keys, purpose: int) -> Floats:
    """Return one uniform number in [0, 1) for each key; each purpose is an independent stream.

    >>> bool(0 <= uniform(derive_keys(0, 5), purpose=1) < 1)
    True
    """
    return (derive_keys(keys, purpose) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_list(key: int, purpose: int, count: int) -> list[float]:
    """Compute `uniform(derive_keys(key, range(count)), purpose)` without NumPy's overhead.

    >>> uniform_list(7, 1, 3) == uniform(derive_keys(7, range(3)), 1).tolist()
    True
    """
    return [
        (derive_key(derive_key(key, counter), purpose) >> 11) * 2.0**-53 for counter in range(count)
    ]


def choose_positions(
    keys: Keys, purpose: int, sizes: Longs, counts: Longs, counters: Longs | None = None
) -> Bools:
    """Choose `counts[i]` of the `sizes[i]` positions of each group at random, as a mask.

    The groups lie end to end in the mask that is returned. `counters` are those of the draws of all
    positions; by default each position is counted from the beginning of its group.

    >>> chosen = choose_positions(
    ...     derive_keys(0, [1, 2]), 0, sizes=np.array([3, 4]), counts=np.array([1, 4])
    ... )
    >>> int(chosen[:3].sum()), chosen[3:].tolist()
    (1, [True, True, True, True])
    """
    starts = np.cumsum(sizes) - sizes
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ranks = np.arange(len(groups)) - starts[groups]  # index of a position in its group
    drawn = ranks if counters is None else counters
    hashes = derive_keys(derive_keys(keys[groups], drawn), purpose)
    order = np.argsort(groups.astype(np.uint64) << 40 | hashes >> 24)  # by group, then at random
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order[ranks < counts[groups]]] = True  # the groups are contiguous in `order`, too
    return chosen
