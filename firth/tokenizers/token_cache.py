"""A cache of the tokens of words: one number per word, and the tokens of all words in one array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, count, islice

import numpy as np
from numpy.typing import NDArray

MAX_WORDS = 400_000  # about 100 MB
MAX_CHARACTERS = 8 << 20  # of all words


class TokenCache:
    """The tokens of the words that were looked up.

    >>> cache = TokenCache()
    >>> numbers = cache.look_up(["the", "bats", "the"])
    >>> numbers.tolist(), cache.missing()
    ([0, 1, 0], ['the', 'bats'])
    >>> cache.add(["the", "bats"], [[5], [6, 7]])
    >>> [array.tolist() for array in cache.tokens(numbers)]
    [[5, 6, 7, 5], [1, 2, 1]]
    """

    def __init__(self) -> None:
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._tokens = np.zeros(0, dtype=np.int64)  # of all words, in the order of their numbers
        self._starts = np.zeros(1, dtype=np.int64)  # where the tokens of each word begin; the end
        self._characters = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time for a new cache."""
        return len(self._numbers) > MAX_WORDS or self._characters > MAX_CHARACTERS

    @property
    def is_complete(self) -> bool:
        """Whether the tokens of all words are known."""
        return len(self._numbers) == len(self._starts) - 1

    def look_up(self, words: Iterable[str]) -> NDArray[np.int64]:
        """Return the number of each word; a new word gets the next number."""
        return np.fromiter(map(self._numbers.__getitem__, words), dtype=np.int64)

    def missing(self) -> list[str]:
        """Return the words without tokens, in the order of their numbers."""
        return list(islice(self._numbers, len(self._starts) - 1, None))

    def add(self, words: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Add the tokens of the first missing words."""
        ends = len(self._tokens) + np.cumsum([len(ids) for ids in tokens])
        self._starts = np.append(self._starts, ends)
        new = np.fromiter(chain.from_iterable(tokens), dtype=np.int64)
        self._tokens = np.append(self._tokens, new)
        self._characters += sum(map(len, words))

    def tokens(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the concatenated tokens of words, and how many each word has."""
        lengths = np.diff(self._starts)[numbers]
        before = np.cumsum(lengths) - lengths  # tokens of earlier words
        inside = np.arange(lengths.sum()) - np.repeat(before, lengths)
        return self._tokens[np.repeat(self._starts[numbers], lengths) + inside], lengths
