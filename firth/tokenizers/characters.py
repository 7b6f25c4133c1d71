"""The characters of words as ids: UTF-8 bytes with marks of beginning and end (Peters et al. 2018).

C  maximum number of characters, marks included     V  vocabulary size
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from firth.tokenizers.tokenizer import Tokenizer

MAX_CHARACTERS = 50  # of a word with its two marks; the rest is cut, as in ELMo
# ELMo's ids, but for the padding after a word, which is 0 here: the bytes from 1 on, the only
# characters of the words <s> and </s>, and the marks around a word.
PADDING, BEGIN_OF_TEXT, END_OF_TEXT, BEGIN_OF_WORD, END_OF_WORD = 0, 257, 258, 259, 260
NUM_CHARACTERS = 262

CharacterIds = NDArray[np.int16]


def word_characters(word: str, size: int = MAX_CHARACTERS) -> CharacterIds:
    """Return the character ids of a word, padded with zeros.

    >>> word_characters("été", size=10).tolist()
    [259, 196, 170, 117, 196, 170, 260, 0, 0, 0]
    """
    return _row([1 + byte for byte in word.encode()], size)


def _row(characters: list[int], size: int) -> CharacterIds:
    marked = [BEGIN_OF_WORD, *characters[: size - 2], END_OF_WORD]
    row = np.zeros(size, np.int16)
    row[: len(marked)] = marked
    return row


def stack_characters(words: Iterable[str], size: int = MAX_CHARACTERS) -> CharacterIds:
    """Return the character ids of words."""  # (words, C)
    rows = [word_characters(word, size) for word in words]
    return np.stack(rows) if rows else np.empty((0, size), np.int16)


def vocabulary_characters(tokenizer: Tokenizer, size: int = MAX_CHARACTERS) -> CharacterIds:
    """Return the character ids of each token; the begin and the end of a text have their own.

    >>> from firth.tokenizers.trainer import train_tokenizer
    >>> tokenizer, _ = train_tokenizer(["a bat", "a bat"], kind="word")
    >>> rows = vocabulary_characters(tokenizer, size=6)
    >>> rows[tokenizer.encode("bat")[0]].tolist(), rows[tokenizer.special_ids["bos"]].tolist()
    ([259, 99, 98, 117, 260, 0], [259, 257, 260, 0, 0, 0])
    """  # (V, C)
    tokens = (tokenizer.backend.id_to_token(id) or "" for id in range(len(tokenizer)))
    rows = stack_characters(tokens, size)
    for role, character in {"bos": BEGIN_OF_TEXT, "eos": END_OF_TEXT}.items():
        if (id := tokenizer.special_ids.get(role)) is not None:
            rows[id] = _row([character], size)
    return rows
