"""Ids of words outside the vocabulary, for networks that read characters or copy words.

A tokenizer of whole words gives every unknown word the id of `<unk>`. A network whose config has
`open_vocabulary` needs the text of such words, so each has an id of its own here, from
`FIRST_OPEN_ID` on, beyond every vocabulary. A network gets the words of a batch by `extended_ids`.

There is one table per process. An id denotes the same word as long as the word is in use. No result
depends on the numbers, and no file contains them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import tokenizers

from firth.utils.errors import InputError
from firth.utils.rng import Longs

FIRST_OPEN_ID = 1 << 30  # beyond every vocabulary, and with `_MAX_IDS` more still 32 bits
MAX_WORDS = 1 << 20  # in memory: about 200 MB
MAX_WORD_CHARACTERS = 128  # a longer word stays `<unk>`
_MAX_IDS = 1 << 30


class OpenVocabulary:
    """Words and their ids; of more than `max_words`, those that were not used longest are removed.

    >>> table = OpenVocabulary(max_words=2)
    >>> first, second = table.id("Firthian"), table.id("collocation")
    >>> table.word(first), table.id("Firthian") == first, second - first
    ('Firthian', True, 1)
    """

    def __init__(self, max_words: int = MAX_WORDS) -> None:
        self.max_words = max_words
        self._ids: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._words: dict[int, str] = {}
        self._made = 0
        self._lock = Lock()

    def id(self, word: str) -> int:
        """Return the id of a word; a new one, if it has none."""
        with self._lock:
            if word not in self._ids:
                self._add(word)
            self._ids.move_to_end(word)
            return self._ids[word]

    def word(self, id: int) -> str:
        """Return the word of an id."""
        with self._lock:
            if id not in self._words:
                raise InputError(
                    f"The data has more than {self.max_words:,} distinct words outside the "
                    "vocabulary; train a tokenizer with a larger one (--vocab-size)."
                )
            word = self._words[id]
            self._ids.move_to_end(word)
            return word

    def _add(self, word: str) -> None:
        if len(self._ids) == self.max_words:
            _, removed = self._ids.popitem(last=False)
            del self._words[removed]
        id = FIRST_OPEN_ID + self._made % _MAX_IDS
        self._ids[word], self._words[id] = id, word
        self._made += 1


_OPEN_WORDS = OpenVocabulary()


def open_word(id: int) -> str:
    """Return the word of an id from `FIRST_OPEN_ID` on."""
    return _OPEN_WORDS.word(id)


def open_ids(
    backend: tokenizers.Tokenizer, encoding: tokenizers.Encoding, text: str, unknown_id: int | None
) -> list[int]:
    """Return the ids of an encoded text, with an id of its own for each unknown word.

    The encoding must have offsets. Words are normalized as the tokenizer does (lower case).

    >>> words = {"<unk>": 0, "a": 1}
    >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    >>> backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    >>> ids = open_ids(backend, backend.encode("a bat"), "a bat", unknown_id=0)
    >>> ids[0], open_word(ids[1])
    (1, 'bat')
    """
    ids = list(encoding.ids)
    if unknown_id is None or unknown_id not in ids:
        return ids
    for i, (begin, end) in enumerate(encoding.offsets):
        word = text[begin:end] if ids[i] == unknown_id else ""
        if backend.normalizer is not None:
            word = backend.normalizer.normalize_str(word)
        if 0 < len(word) <= MAX_WORD_CHARACTERS and backend.token_to_id(word) is None:
            ids[i] = _OPEN_WORDS.id(word)
    return ids


def extended_ids(ids: Longs, vocab_size: int) -> tuple[Longs, list[str]]:
    """Number the open words of a batch from `vocab_size` on, by first occurrence; return both.

    This is the extended vocabulary of a batch in See et al. 2017, section 2.2.

    >>> bat, fox = (_OPEN_WORDS.id(word) for word in ("bat", "fox"))
    >>> extended_ids(np.array([7, fox, 3, bat, fox]), 10)
    (array([ 7, 10,  3, 11, 10]), ['fox', 'bat'])
    """
    is_open = ids >= FIRST_OPEN_ID
    if not is_open.any():
        return ids, []
    distinct, first, inverse = np.unique(ids[is_open], return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    extended = ids.copy()
    extended[is_open] = vocab_size + rank[inverse]
    return extended, [open_word(int(id)) for id in distinct[order]]


def extended_pair(
    source: Longs, target: Longs, vocab_size: int, unknown_id: int | None
) -> tuple[Longs, Longs]:
    """Number the open words of a source, and the same words in its target.

    Open words that only the target has become `<unk>`: they cannot be copied.

    >>> bat, fox = (_OPEN_WORDS.id(word) for word in ("bat", "fox"))
    >>> extended_pair(np.array([7, fox]), np.array([fox, bat, 3]), 10, unknown_id=0)
    (array([ 7, 10]), array([10,  0,  3]))
    """
    ids, _ = extended_ids(np.concatenate([source, target]), vocab_size)
    own, copied = ids[: len(source)], ids[len(source) :]
    last = max(int(own.max(initial=0)), vocab_size - 1)
    return own, np.where(copied > last, unknown_id or 0, copied)


def restored_ids(ids: Sequence[int], words: Sequence[str], vocab_size: int) -> list[int]:
    """Undo `extended_ids`, given the words that it returned.

    >>> ids, words = extended_ids(np.array([7, _OPEN_WORDS.id("fox")]), 10)
    >>> open_word(restored_ids(ids.tolist(), words, 10)[1])
    'fox'
    """
    return [_OPEN_WORDS.id(words[id - vocab_size]) if id >= vocab_size else id for id in ids]


def decode_words(backend: tokenizers.Tokenizer, ids: Sequence[int], skip: set[int]) -> str:
    """Join the words of ids, open ones included, with spaces; omit the ids to `skip`."""
    words = (
        open_word(id) if id >= FIRST_OPEN_ID else backend.id_to_token(id) or ""
        for id in ids
        if id not in skip
    )
    return " ".join(word for word in words if word)
