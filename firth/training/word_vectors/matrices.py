"""Matrices of vectors, as the C kernels need them: rows of whole cache lines."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from firth.utils.rng import derive_key, derive_keys, uniform

ROW_FLOATS = 16  # of a cache line: 64 bytes
_INIT_DRAW = 1 << 32  # a counter that no epoch has
_BLOCK = 1 << 14  # rows whose random numbers are in memory at the same time


def aligned_rows(rows: int, size: int, value: float = 0.0) -> Tensor:
    """Return a constant matrix (rows, size), where each row begins at a cache line.

    >>> aligned_rows(2, 100).stride()
    (112, 1)
    """
    return torch.full((rows, -(-size // ROW_FLOATS) * ROW_FLOATS), value)[:, :size]


def random_vectors(rows: int, size: int, seed: int, stream: int = 0) -> Tensor:
    """Return uniform numbers between -1 / size and 1 / size in aligned rows.

    >>> random_vectors(2, 100, seed=1).abs().max().item() < 0.01
    True
    """
    vectors, key = aligned_rows(rows, size), derive_key(derive_key(seed, _INIT_DRAW), stream)
    for start in range(0, rows, _BLOCK):
        end = min(start + _BLOCK, rows)
        draws = uniform(derive_keys(key, np.arange(start * size, end * size)), 0)
        block = torch.from_numpy((2 * draws - 1) / size).view(-1, size)
        vectors[start:end] = block
    return vectors
