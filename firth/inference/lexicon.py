"""The words that are one token to a model, and which of them are spelt almost like another word.

n  words     L  letters of the longest
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from firth.draws import Longs
from firth.inference.blanks import cut_words
from firth.text.tokenizer import Tokenizer

LONGEST = 40  # letters of a word
SHORT = 3  # a word of so many letters may differ in one, a longer one in two


class Near(NamedTuple):
    """A word that is spelt almost like another."""

    word: str
    id: int
    edits: int


@dataclass(frozen=True)
class Lexicon:
    """Words that are one token each."""

    words: list[str]  # (n,) as the vocabulary has them
    ids: Longs  # (n,)
    letters: NDArray[np.int32]  # (n, L) in lower case; 0 behind the end
    lengths: Longs  # (n,)

    def near(self, word: str) -> list[Near]:
        """The words that one or two edits lead to: a letter more, less or other, two swapped."""
        lower = word.casefold()
        most = 1 if len(lower) <= SHORT else 2
        close = np.flatnonzero(np.abs(self.lengths - len(lower)) <= most)
        found = edits(lower, self.letters[close], self.lengths[close])
        return [
            Near(self.words[i], int(self.ids[i]), int(distance))
            for i, distance in zip(close.tolist(), found.tolist(), strict=True)
            if 0 < distance <= most
        ]


def make_lexicon(tokenizer: Tokenizer, *, spaced: bool) -> Lexicon:
    """The whole words of a vocabulary, behind a space or at the beginning of a text."""
    added = tokenizer.backend.get_added_tokens_decoder()
    texts = {id: tokenizer.decode([id]).strip() for id in range(len(tokenizer)) if id not in added}
    kept = {
        id: text
        for id, text in texts.items()
        if 2 <= len(text) <= LONGEST and text.isalpha() and len(text) == len(text.casefold())
    }
    cut = cut_words(tokenizer, list(kept.values()), spaced=spaced)
    whole = {id: text for (id, text), own in zip(kept.items(), cut, strict=True) if own == [id]}
    words = list(whole.values())
    longest = max(map(len, words), default=0)
    letters = np.zeros((len(words), longest), dtype=np.int32)
    for row, word in zip(letters, words, strict=True):
        row[: len(word)] = _letters(word.casefold())
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    return Lexicon(words, np.array(list(whole), dtype=np.int64), letters, lengths)


def _letters(word: str) -> list[int]:
    return [ord(letter) for letter in word]


def edits(word: str, letters: NDArray[np.int32], lengths: Longs) -> NDArray[Any]:
    """How many edits lead from a word to each of many others, all at once.

    An edit puts a letter in, takes one out, changes one or swaps two neighbours, and no letter is
    touched twice (Damerau 1964, as optimal string alignment).

    >>> edits("teh", np.array([_letters("the"), _letters("ten")], dtype=np.int32), np.array([3, 3]))
    array([1, 1], dtype=int8)
    """
    count, longest = letters.shape
    own = _letters(word)
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
