"""Tokenize batches of words with the tokenizer of another network.

N  words of the batch     T  tokens of the other tokenizer
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from firth.tokenizers.open_vocabulary import FIRST_OPEN_ID, open_word
from firth.tokenizers.tokenizer import Tokenizer, encode_batch
from firth.tokenizers.word_alignment import token_words, word_windows
from firth.utils.rng import Longs


class TokenStream(NamedTuple):
    """Packed sequences of tokens, with the word of the batch that each token belongs to."""

    tokens: Longs  # (T,)
    words: Longs  # (T,) indices in the batch, ascending; -1: none, such as special tokens
    lengths: list[int]  # of the sequences


class Retokenizer:
    """Convert ids of whole words to ids of another tokenizer.

    A text is the words between special tokens, joined by spaces, with the special tokens of the
    other tokenizer around it. A text of more than `max_length` tokens is split between words.

    >>> from firth.tokenizers.word_vocabulary import word_tokenizer
    >>> own, other = (word_tokenizer(words, lowercase=True, split=True) for words in ("ab", "ba"))
    >>> made = Retokenizer(own, other, max_length=8)
    >>> end = own.special_ids["eos"]
    >>> made([5, 6, end, 5], [4])  # a b </s> a: two texts
    TokenStream(tokens=array([6, 5, 6]), words=array([0, 1, 3]), lengths=[2, 1])
    """

    def __init__(
        self, own: Tokenizer, other: Tokenizer, *, max_length: int, open_vocabulary: bool = False
    ) -> None:
        self.tokenizer, self.open_vocabulary = other, open_vocabulary
        self._words = [own.backend.id_to_token(id) or "" for id in range(len(own))]
        special = set(own.backend.get_added_tokens_decoder())
        if own.unknown_id is not None:  # a word of too many characters, which has no text
            special.discard(own.unknown_id)
            self._words[own.unknown_id] = ""
        self._special = special
        self._before, self._after = special_tokens_around(other)
        self._room = max(1, max_length - len(self._before) - len(self._after))

    def __call__(self, ids: Sequence[int], lengths: Sequence[int]) -> TokenStream:
        """Tokenize the texts of packed sequences of words."""
        texts = self._texts(ids, lengths)
        words = [[self._word(ids[i]) for i in text] for text in texts]
        joined = [" ".join(row) for row in words]
        encodings = encode_batch(self.tokenizer.backend, joined, offsets=True)
        none = np.empty(0, dtype=np.int64)
        tokens, owners, sizes = [none], [none], []
        for text, row, whole, made in zip(texts, words, joined, encodings, strict=True):
            found = self.tokenizer.open_ids(made, whole) if self.open_vocabulary else made.ids
            for begin, end, own in word_windows(token_words(row, made.offsets), self._room):
                tokens.append(np.array([*self._before, *found[begin:end], *self._after], np.int64))
                placed = np.full(len(tokens[-1]), -1)
                at = len(self._before)
                placed[at : at + len(own)] = np.where(own >= 0, own + text.start, -1)
                owners.append(placed)
                sizes.append(len(placed))
        return TokenStream(np.concatenate(tokens), np.concatenate(owners), sizes)

    def _texts(self, ids: Sequence[int], lengths: Sequence[int]) -> list[range]:
        """Return the places of the words of each text."""
        sequences = np.repeat(np.arange(len(lengths)), lengths).tolist()
        kinds = [(number, id in self._special) for number, id in zip(sequences, ids, strict=True)]
        texts, begin = [], 0
        for (_, is_special), group in groupby(kinds):
            end = begin + len(list(group))
            if not is_special:
                texts.append(range(begin, end))
            begin = end
        return texts

    def _word(self, id: int) -> str:
        return open_word(id) if id >= FIRST_OPEN_ID else self._words[id]


def special_tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that a tokenizer puts before and after a text."""
    made = tokenizer.encoding("a", specials=True)
    text = [place for place, special in enumerate(made.special_tokens_mask) if not special]
    return made.ids[: text[0]], made.ids[text[-1] + 1 :]
