"""Whole words of a vocabulary, and those within a small edit distance of a word.

n  words     L  letters of the longest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firth.inference.infilling.blanks import tokenize_words
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.rng import Longs

MAX_WORD_LENGTH = 40
SHORT_WORD_LENGTH = 3  # words up to this length may differ by one edit, longer ones by two


class SimilarWord(NamedTuple):
    """A word of the vocabulary and its edit distance to another word."""

    word: str
    id: int
    edits: int


@dataclass(frozen=True)
class WordList:
    """Words that are a single token each."""

    words: list[str]  # (n,) as in the vocabulary
    ids: Longs  # (n,)
    letters: NDArray[np.int32]  # (n, L) lower-case code points, padded with 0
    lengths: Longs  # (n,)

    def similar(self, word: str) -> list[SimilarWord]:
        """Return the words at an edit distance of one or two."""
        lower = word.casefold()
        max_edits = 1 if len(lower) <= SHORT_WORD_LENGTH else 2
        close = np.flatnonzero(np.abs(self.lengths - len(lower)) <= max_edits)
        distances = edit_distances(lower, self.letters[close], self.lengths[close])
        return [
            SimilarWord(self.words[i], int(self.ids[i]), int(distance))
            for i, distance in zip(close.tolist(), distances.tolist(), strict=True)
            if 0 < distance <= max_edits
        ]


def build_word_list(tokenizer: Tokenizer, *, spaced: bool) -> WordList:
    """Collect a vocabulary's whole words, after a space or at the beginning of a text."""
    added = tokenizer.backend.get_added_tokens_decoder()
    texts = {id: tokenizer.decode([id]).strip() for id in range(len(tokenizer)) if id not in added}
    candidates = {
        id: text
        for id, text in texts.items()
        if 2 <= len(text) <= MAX_WORD_LENGTH
        and text.isalpha()
        and len(text) == len(text.casefold())
    }
    tokens = tokenize_words(tokenizer, list(candidates.values()), spaced=spaced)
    pairs = zip(candidates.items(), tokens, strict=True)
    whole = {id: text for (id, text), own in pairs if own == [id]}
    words = list(whole.values())
    longest = max(map(len, words), default=0)
    letters = np.zeros((len(words), longest), dtype=np.int32)
    for row, word in zip(letters, words, strict=True):
        row[: len(word)] = _code_points(word.casefold())
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    return WordList(words, np.array(list(whole), dtype=np.int64), letters, lengths)


def _code_points(word: str) -> list[int]:
    return [ord(letter) for letter in word]


def edit_distances(word: str, letters: NDArray[np.int32], lengths: Longs) -> NDArray[Any]:
    """Compute the edit distance of a word to each of n words at once.

    An edit inserts, deletes or changes a letter or swaps two neighbours, and no letter is edited
    twice (Damerau 1964; optimal string alignment).

    >>> words = np.array([_code_points("the"), _code_points("ten")], dtype=np.int32)
    >>> edit_distances("teh", words, np.array([3, 3]))
    array([1, 1], dtype=int8)
    """
    count, longest = letters.shape
    own = _code_points(word)
    table = np.zeros((len(own) + 1, longest + 1, count), dtype=np.int8)
    table[0] = np.arange(longest + 1, dtype=np.int8)[:, None]
    table[:, 0] = np.arange(len(own) + 1, dtype=np.int8)[:, None]
    for i, letter in enumerate(own, 1):
        for j in range(1, longest + 1):
            other = letters[:, j - 1]
            best = np.minimum(table[i - 1, j], table[i, j - 1]) + 1
            np.minimum(best, table[i - 1, j - 1] + (other != letter), out=best)
            if i > 1 and j > 1:
                swapped = (other == own[i - 2]) & (letters[:, j - 2] == letter)
                np.minimum(best, np.where(swapped, table[i - 2, j - 2] + 1, best), out=best)
            table[i, j] = best
    return table[len(own), lengths, np.arange(count)]
