"""An n-gram model to beat: interpolated Kneser-Ney (Chen and Goodman 1999, equation 27).

Counts live in sorted arrays of hashed n-grams, so a million tokens take a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class Counts:
    """How often each of some n-grams was seen."""

    def __init__(self, grams: Hashes, weights: NDArray[np.int64] | None = None) -> None:
        self.grams, inverse = np.unique(grams, return_inverse=True)
        self.counts = np.bincount(inverse, weights=weights, minlength=len(self.grams))

    def of(self, grams: Hashes) -> NDArray[np.float64]:
        at = np.searchsorted(self.grams, grams).clip(max=len(self.grams) - 1)
        return np.where(self.grams[at] == grams, self.counts[at], 0.0)


def _hash(columns: Sequence[NDArray[np.int64]]) -> Hashes:
    """One number for each row of tokens."""
    hashes = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        hashes = (hashes ^ (column.astype(np.uint64) + np.uint64(1))) * MULTIPLIER
        hashes ^= hashes >> np.uint64(29)
    return hashes


class KneserNey:
    """Probabilities of tokens after the `order - 1` before them."""

    def __init__(self, documents: Sequence[Sequence[int]], vocabulary: int, order: int = 5) -> None:
        self.order, self.vocabulary = order, vocabulary
        windows = np.concatenate([self._windows(document) for document in documents])
        self.levels = []
        for size in range(order, 0, -1):
            grams = windows[:, order - size :]
            if size < order:  # in how many different contexts it was seen, not how often
                _, first = np.unique(_hash(windows[:, order - size - 1 :].T), return_index=True)
                grams = grams[first]
            whole = Counts(_hash(grams.T))
            _, first = np.unique(_hash(grams.T), return_index=True)
            distinct = grams[first]
            context = _hash(grams[:, :-1].T) if size > 1 else np.zeros(len(grams), np.uint64)
            kinds = _hash(distinct[:, :-1].T) if size > 1 else np.zeros(len(distinct), np.uint64)
            ones, twos = (whole.counts == 1).sum(), (whole.counts == 2).sum()
            discount = ones / (ones + 2 * twos)
            self.levels.append((whole, Counts(context), Counts(kinds), discount))

    def _windows(self, document: Sequence[int]) -> NDArray[np.int64]:
        """Each token, and the end, with what stands before it."""
        begin, end = [self.vocabulary] * (self.order - 1), [self.vocabulary + 1]
        row = np.array([*begin, *document, *end], dtype=np.int64)
        return np.lib.stride_tricks.sliding_window_view(row, self.order)

    def log_probabilities(self, document: Sequence[int]) -> NDArray[np.float64]:
        """Of each token of a document and of its end."""
        return self._log_probabilities(self._windows(document))

    def next_log_probabilities(self, document: Sequence[int]) -> NDArray[np.float64]:
        """Of each token of the vocabulary after a document."""
        context = [self.vocabulary] * (self.order - 1) + [*document]
        rows = np.empty((self.vocabulary, self.order), dtype=np.int64)
        rows[:, :-1] = context[len(context) - self.order + 1 :]
        rows[:, -1] = np.arange(self.vocabulary)
        return self._log_probabilities(rows)

    def _log_probabilities(self, windows: NDArray[np.int64]) -> NDArray[np.float64]:
        share = np.full(len(windows), 1.0 / (self.vocabulary + 1))
        for size, (whole, context, kinds, discount) in zip(
            range(1, self.order + 1), reversed(self.levels), strict=True
        ):
            grams = windows[:, self.order - size :]
            before = _hash(grams[:, :-1].T) if size > 1 else np.zeros(len(grams), np.uint64)
            seen = np.maximum(context.of(before), 1e-12)
            known = context.of(before) > 0
            own = np.maximum(whole.of(_hash(grams.T)) - discount, 0) / seen
            left = discount * kinds.of(before) / seen
            share = np.where(known, own + left * share, share)
        return np.log(share)
