"""Packed sequences: several token sequences in one stream, with the offset of each.

S  sequences     N  tokens of all sequences     K  sentences
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from firth.utils.rng import Bools, Keys, Longs


@dataclass(frozen=True)
class PackedSequences:
    """Concatenated token sequences."""

    tokens: Longs  # (N,)
    starts: Longs  # (S + 1,) start of each sequence, then the total length
    keys: Keys  # (S,) random-number key of each sequence
    segments: Longs | None = None  # (N,) 0 for the first text of a pair, 1 for the second
    sentences: Longs | None = None  # (K,) starts of sentences in the stream
    first_counters: Longs | None = None  # (S,) of random draws for the first token; None: zeros

    @cached_property
    def lengths(self) -> Longs:
        """Length of each sequence."""  # (S,)
        return np.diff(self.starts)

    @cached_property
    def owners(self) -> Longs:
        """Sequence index of each token."""  # (N,)
        return np.repeat(np.arange(len(self.keys)), self.lengths)

    @cached_property
    def offsets(self) -> Longs:
        """Position of each token in its sequence."""  # (N,)
        return np.arange(len(self.tokens)) - self.starts[self.owners]

    @cached_property
    def counters(self) -> Longs:
        """Counter of the random draws for each token: by default its offset."""  # (N,)
        if self.first_counters is None:
            return self.offsets
        return self.offsets + self.first_counters[self.owners]

    def count_in_sequences(self, positions: Longs) -> Longs:
        """Count how many of these positions of the stream, in order, are in each sequence.

        >>> stream = PackedSequences.join([np.arange(3), np.arange(2)], np.zeros(2, np.uint64))
        >>> stream.count_in_sequences(np.array([0, 2, 4])).tolist()
        [2, 1]
        """  # (P,) -> (S,)
        return np.diff(np.searchsorted(positions, self.starts))

    def rows(self) -> list[Longs]:
        """Return the sequences as separate arrays."""
        return np.split(self.tokens, self.starts[1:-1])

    @classmethod
    def join(cls, rows: Sequence[Longs], keys: Keys) -> PackedSequences:
        """Concatenate sequences."""
        tokens = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        return cls(tokens, np.cumsum([0, *map(len, rows)]), keys)

    @classmethod
    def of_sizes(cls, tokens: Longs, sizes: Longs, keys: Keys) -> PackedSequences:
        """Divide a stream of tokens into sequences of these sizes."""
        return cls(tokens, np.concatenate(([0], np.cumsum(sizes))), keys)

    def select(self, wanted: Bools) -> PackedSequences:
        """Return only the wanted sequences."""
        if wanted.all():
            return self
        rows = [row for row, is_wanted in zip(self.rows(), wanted, strict=True) if is_wanted]
        return PackedSequences.join(rows, self.keys[wanted])

    def between(self, begin: int, end: int) -> PackedSequences:
        """Return sequences `begin` to `end`."""
        first, last = self.starts[[begin, end]]
        segments = None if self.segments is None else self.segments[first:last]
        starts = self.starts[begin : end + 1] - first
        return PackedSequences(self.tokens[first:last], starts, self.keys[begin:end], segments)

    def with_tokens(self, tokens: Longs) -> PackedSequences:
        """Return the same sequences with other tokens."""
        return replace(self, tokens=tokens)
