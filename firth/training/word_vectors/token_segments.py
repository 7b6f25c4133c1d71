"""The text of shards as segments of tokens that fit in memory, in the order of the shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from firth.utils.rng import Bools, Longs

SEGMENT_TOKENS = 1 << 18


class Documents(Protocol):
    """Token ids of documents: `Shards`, for example."""

    @property
    def lengths(self) -> Longs:
        """The number of tokens of each document."""
        ...

    def gather(self, documents: Longs, starts: Longs, ends: Longs) -> Longs:
        """Return concatenated spans of documents."""
        ...


class Segment(NamedTuple):
    """Tokens of whole documents."""

    tokens: NDArray[np.int32]  # (N,)
    documents: NDArray[np.int32]  # (N,) number of each token's document
    positions: Longs  # (N,) index of each token in the whole text

    def select(self, chosen: Bools) -> Segment:
        """Return the tokens that a mask chooses."""
        return Segment(self.tokens[chosen], self.documents[chosen], self.positions[chosen])


class TokenSegments:
    """The tokens of documents, without the ignored ones: special and unknown tokens.

    Windows reach across a token that is left out, as in word2vec.
    """

    def __init__(
        self, documents: Documents, vocab_size: int, ignored: Collection[int] = ()
    ) -> None:
        self.documents = documents
        self.used = np.ones(vocab_size, dtype=np.bool_)
        self.used[list(ignored)] = False
        self.tokens = int(documents.lengths.sum())

    def __iter__(self) -> Iterator[Segment]:
        lengths = self.documents.lengths
        ends = np.cumsum(lengths)
        first = 0
        while first < len(lengths):
            start = int(ends[first] - lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, start + SEGMENT_TOKENS, side="right")))
            yield self._segment(np.arange(first, last), start)
            first = last

    def _segment(self, documents: Longs, start: int) -> Segment:
        lengths = self.documents.lengths[documents]
        tokens = self.documents.gather(documents, np.zeros_like(lengths), lengths)
        whole = Segment(
            tokens.astype(np.int32),
            np.repeat(documents, lengths).astype(np.int32),
            np.arange(start, start + len(tokens)),
        )
        return whole.select(self.used[tokens])

    @cached_property
    def counts(self) -> Longs:
        """The number of occurrences of each token; ignored ones have none."""
        size = len(self.used)
        return sum(
            (np.bincount(segment.tokens, minlength=size) for segment in self),
            start=np.zeros(size, dtype=np.int64),
        )
