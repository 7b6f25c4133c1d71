"""Tests of word vectors; those of the C kernels are skipped where they cannot be compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from firth.training.word_vectors.c_kernels import kernels_available
from firth.utils.rng import Longs

needs_kernels = pytest.mark.skipif(not kernels_available(), reason="no compiled kernels.")


class Texts:
    """Documents in memory."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        self.rows = [np.array(document, dtype=np.int64) for document in documents]
        self.lengths: Longs = np.array([len(row) for row in self.rows])

    def gather(self, documents: Longs, starts: Longs, ends: Longs) -> Longs:
        spans = zip(documents, starts, ends, strict=True)
        return np.concatenate([self.rows[document][a:b] for document, a, b in spans])


def random_texts(words: int, documents: int = 7, length: int = 60) -> Texts:
    """Texts with frequent and rare words."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, length, documents)
    return Texts([np.minimum(rng.geometric(0.1, size), words) - 1 for size in sizes])
