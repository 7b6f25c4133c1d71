"""Which rows of the input matrix make up the vector of each word.

V  words     R  rows: one per word, then one per bucket that an n-gram of a word is hashed into
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from firth.models.subwords import SubwordConfig, ngram_buckets
from firth.utils.rng import Floats, Longs


class SubwordRows(NamedTuple):
    """The input rows of all words end to end: the word's own, then those of its n-grams."""

    starts: Longs  # (V + 1,)
    rows: NDArray[np.int32]
    buckets: Longs  # (R - V,) sorted: the bucket of each n-gram row

    @property
    def num_rows(self) -> int:
        """The number of rows of the input matrix."""
        return len(self.starts) - 1 + len(self.buckets)

    def of(self, words: Longs) -> tuple[Longs, Longs]:
        """Return the rows of some words, end to end, and the number of rows of each."""
        sizes = self.starts[words + 1] - self.starts[words]
        inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.rows[np.repeat(self.starts[words], sizes) + inside].astype(np.int64), sizes

    def average(self, matrix: Tensor) -> Tensor:
        """Return the vector of every word: the mean of its rows."""
        return embedding_bag(  # (V, W)
            torch.from_numpy(self.rows).long(),
            matrix,
            torch.from_numpy(self.starts[:-1]),
            mode="mean",
        )

    def shares(self, words: Floats) -> Floats:
        """Return the fraction of tokens that change a word's vector, from the fractions of words.

        A token changes the rows of its n-grams; another word's vector changes by the mean.

        >>> rows = find_rows(["at", "cat"], SubwordConfig(min_n=3, max_n=3))  # <at at>, <ca cat at>
        >>> rows.shares(np.array([0.25, 0.75])).round(3).tolist()
        [0.5, 0.812]
        """
        sizes = np.diff(self.starts)
        per_row = np.bincount(self.rows, weights=np.repeat(words, sizes), minlength=self.num_rows)
        return np.add.reduceat(per_row[self.rows], self.starts[:-1]) / sizes


def find_rows(words: Sequence[str | None], config: SubwordConfig) -> SubwordRows:
    """Return the rows of all words; None is a token without n-grams, such as a special one.

    >>> rows = find_rows(["at", "cat"], SubwordConfig(min_n=3, max_n=3, buckets=100))
    >>> rows.starts.tolist(), rows.num_rows  # one n-gram is in both words
    ([0, 3, 7], 6)
    """
    known = np.array([word is not None for word in words])
    found, known_sizes = ngram_buckets([word for word in words if word is not None], config)
    sizes = np.zeros(len(words), dtype=np.int64)
    sizes[known] = known_sizes
    buckets = np.unique(found)
    starts = np.concatenate(([0], np.cumsum(sizes + 1)))
    rows = np.empty(int(starts[-1]), dtype=np.int32)
    own = np.zeros(len(rows), dtype=np.bool_)
    own[starts[:-1]] = True
    rows[own] = np.arange(len(words))
    rows[~own] = len(words) + np.searchsorted(buckets, found)
    return SubwordRows(starts, rows, buckets)
