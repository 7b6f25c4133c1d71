"""Count the n-grams of documents, sorted, in bounded memory.

    T  tokens with document boundaries     C  distinct n-grams of one order     V  vocabulary size

N-grams of every order are numbered in lexicographic order. An n-gram is stored as one integer, its
key: the number of its first n - 1 words, times V, plus its last word. So the keys of an order are
sorted, and the n-grams that continue the same context are neighbours. The number of a unigram is
its token id. For the document `a b a` with V = 4, <s> = 2 and </s> = 3:

    tokens    2 0 1 0 3
    bigrams   (0 1) (0 3) (1 0) (2 0)         keys  1  3  4  8
    trigrams  (0 1 0) (1 0 3) (2 0 1)         keys  0 * 4 + 0, 2 * 4 + 3, 3 * 4 + 1

Order n is counted from order n - 1: of every token position, only the number of the n-gram that
begins there is kept. Positions are sorted in blocks of neighbouring contexts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firth.data.shards import Shards, token_type
from firth.tokenizers.counting import Progress
from firth.utils.rng import Longs

BLOCK = 1 << 23  # positions that are sorted, or n-grams that are computed, at a time
Ints = NDArray[np.int32]


@dataclass(frozen=True)
class NgramCounts:
    """The distinct n-grams of one order; the arrays may be memory-mapped."""

    keys: Longs  # (C,) number of the first n - 1 words * V + last word, sorted
    counts: Ints  # (C,)
    suffixes: Ints  # (C,) number of the last n - 1 words among those of order n - 1; empty for 1

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class BoundedText:
    """All documents in one stream, each between <s> and </s>."""

    tokens: NDArray[Any]  # (T,)
    is_end: NDArray[np.bool_]  # (T,) the last token of a document, </s>


def bounded_text(shards: Shards, bos: int, eos: int, vocab_size: int) -> BoundedText:
    """Concatenate the documents of shards with <s> before and </s> after each."""
    size = shards.tokens + 2 * len(shards)
    tokens = np.empty(size, dtype=token_type(vocab_size))
    is_end = np.zeros(size, dtype=np.bool_)
    at = 0
    for documents in _document_blocks(shards.lengths):
        lengths = shards.lengths[documents]
        starts = at + np.cumsum(lengths + 2) - (lengths + 2)
        ends = starts + lengths + 1
        at = int(ends[-1]) + 1
        inside = np.ones(at - int(starts[0]), dtype=np.bool_)
        inside[starts - starts[0]] = inside[ends - starts[0]] = False
        part = tokens[starts[0] : at]
        part[inside] = shards.gather(documents, np.zeros_like(lengths), lengths)
        tokens[starts], tokens[ends], is_end[ends] = bos, eos, True
    return BoundedText(tokens, is_end)


def _document_blocks(lengths: Longs) -> Iterator[Longs]:
    """Yield the numbers of neighbouring documents with about BLOCK tokens."""
    block = np.cumsum(lengths) // BLOCK
    borders = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(lengths)]
    for begin, end in pairwise(borders):
        yield np.arange(begin, end)


def count_ngrams(
    text: BoundedText, order: int, vocab_size: int, scratch: Path, progress: Progress
) -> list[NgramCounts]:
    """Count the n-grams of all orders up to `order`; arrays are stored in the folder `scratch`.

    No n-gram crosses the end of a document. <s> is never counted as a unigram, because it is
    never predicted.

    >>> import tempfile
    >>> text = BoundedText(np.array([2, 0, 1, 0, 3]), np.array([0, 0, 0, 0, 1], dtype=bool))
    >>> folder = Path(tempfile.mkdtemp())
    >>> one, two, three = count_ngrams(text, 3, 4, folder, lambda *_: None)
    >>> one.counts.tolist(), two.keys.tolist(), three.keys.tolist(), three.suffixes.tolist()
    ([2, 1, 0, 1], [1, 3, 4, 8], [0, 11, 13], [2, 1, 0])
    """
    occurrences = _count_tokens(text.tokens, vocab_size)  # also of <s>
    predicted = occurrences - _count_tokens(text.tokens[_begins(text)], vocab_size)
    empty = np.empty(0, dtype=np.int32)
    found = [NgramCounts(np.arange(vocab_size), predicted.astype(np.int32), empty)]
    numbers = text.tokens.astype(np.int32)  # (T,) of the n-gram that begins there; -1: none
    for n in range(2, order + 1):
        counter = OrderCounter(text, n, vocab_size, numbers, occurrences)
        found.append(counter.count(scratch, progress))
        numbers, occurrences = counter.next_numbers, found[-1].counts
    return found


def _count_tokens(tokens: NDArray[Any], vocab_size: int) -> NDArray[Any]:
    """Return how often each token occurs; a block at a time, which numpy converts to 64 bits."""
    blocks = (tokens[at : at + BLOCK] for at in range(0, len(tokens), BLOCK))
    none = np.zeros(vocab_size, dtype=np.int64)
    return sum((np.bincount(block, minlength=vocab_size) for block in blocks), start=none)


def _begins(text: BoundedText) -> NDArray[np.bool_]:
    """Return which tokens begin a document: <s>."""
    return np.concatenate([[True], text.is_end[:-1]])


@dataclass
class OrderCounter:
    """Counts the n-grams of order n from the numbers of those of order n - 1."""

    text: BoundedText
    n: int
    vocab_size: int
    numbers: Ints  # (T,) of order n - 1
    occurrences: NDArray[Any]  # of each of them

    def count(self, scratch: Path, progress: Progress) -> NgramCounts:
        """Return the n-grams, stored in files, and set `next_numbers`, their numbers."""
        self.next_numbers: Ints = np.full(len(self.numbers), -1, dtype=np.int32)
        paths = [scratch / f"{self.n}-{name}" for name in ("keys", "counts", "suffixes")]
        done = 0
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("wb")) for path in paths]
            for begin, end in self._context_blocks():
                keys, counts, suffixes = self._count_block(begin, end, first=done)
                keys.tofile(files[0])
                counts.tofile(files[1])
                suffixes.tofile(files[2])
                done += len(keys)
                progress(f"counting {self.n}-grams", end, len(self.occurrences))
        types = ("int64", "int32", "int32")
        return NgramCounts(*map(_read_mapped, paths, types))

    def _context_blocks(self) -> list[tuple[int, int]]:
        """Return ranges of contexts that occur about BLOCK times together."""
        totals = np.cumsum(self.occurrences, dtype=np.int64)
        borders = [0]
        while borders[-1] < len(totals):
            before = int(totals[borders[-1] - 1]) if borders[-1] else 0
            end = int(np.searchsorted(totals, before + BLOCK, side="right"))
            borders.append(max(borders[-1] + 1, end))
        return list(pairwise(borders))

    def _count_block(self, begin: int, end: int, first: int) -> tuple[Longs, Ints, Ints]:
        """Count the n-grams whose contexts are in a range; `first` is the number of the first."""
        places = self._positions(begin, end)
        contexts = self.numbers[places].astype(np.int64) - begin
        keys, order = sort_keys(
            contexts * self.vocab_size + self.text.tokens[places + self.n - 1],
            limit=(end - begin) * self.vocab_size,
        )
        keys, places = keys + begin * self.vocab_size, places[order]
        is_new = np.diff(keys, prepend=-1) != 0
        self.next_numbers[places] = first + np.cumsum(is_new) - 1
        starts = np.flatnonzero(is_new)
        counts = np.diff(starts, append=len(keys)).astype(np.int32)
        return keys[starts], counts, self.numbers[places[starts] + 1]

    def _positions(self, begin: int, end: int) -> Longs:
        """Return the positions of n-grams whose contexts are in a range."""
        found = []
        for at in range(0, len(self.numbers), BLOCK):
            part = self.numbers[at : at + BLOCK]
            places = at + np.flatnonzero((part >= begin) & (part < end))
            # A context that ends with </s> has no continuation.
            found.append(places[~self.text.is_end[places + self.n - 2]])
        return np.concatenate(found)


def sort_keys(keys: Longs, limit: int) -> tuple[Longs, Longs]:
    """Return keys below `limit` in ascending order, and the index of each.

    Keys and indices are sorted as one number if it has 63 bits, which is several times as fast.

    >>> [found.tolist() for found in sort_keys(np.array([30, 10, 30, 20]), limit=31)]
    [[10, 20, 30, 30], [1, 3, 0, 2]]
    """
    bits = len(keys).bit_length()
    if limit.bit_length() + bits > 63:
        order = np.argsort(keys, kind="stable")
        return keys[order], order
    joined = keys << bits
    joined |= np.arange(len(keys))
    joined.sort()
    return joined >> bits, joined & (1 << bits) - 1


def _read_mapped(path: Path, dtype: str) -> NDArray[Any]:
    """Return the numbers of a file as a memory-mapped array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="c")
