"""Character n-grams of words, hashed into buckets (Bojanowski et al. 2017, section 3.2).

A word's vector is the mean of the vectors of the word and of its n-grams, so that words with a
common stem or ending share parameters, and an unknown word has a vector as well.

C  characters of all words     M  n-grams of all words
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from firth.utils.config_fields import Doc
from firth.utils.rng import Longs

Hashes = NDArray[np.uint32]

_FNV_BASIS = np.uint32(2166136261)
_FNV_PRIME = np.uint32(16777619)


@dataclass(frozen=True, kw_only=True)
class SubwordConfig:
    """The n-grams of a word, and the number of buckets that they are hashed into."""

    min_n: Annotated[int, Doc("Characters of the shortest n-grams.")] = 3
    max_n: Annotated[int, Doc("Characters of the longest n-grams.")] = 6
    buckets: Annotated[int, Doc("Hash buckets of n-grams.")] = 2_000_000


def word_ngrams(word: str, min_n: int = 3, max_n: int = 6) -> list[str]:
    """Return the n-grams of a word between the boundary marks < and >.

    >>> word_ngrams("where", 3, 3)
    ['<wh', 'whe', 'her', 'ere', 're>']
    """
    marked = f"<{word}>"
    return [
        marked[start : start + n]
        for n in range(min_n, max_n + 1)
        for start in range(len(marked) - n + 1)
    ]


def hash_ngram(ngram: str) -> int:
    """Hash the UTF-8 bytes of an n-gram as fastText does: 32-bit FNV-1a with signed bytes.

    >>> hash_ngram("<wh"), hash_ngram("a")
    (1048167652, 3826002220)
    """
    value = int(_FNV_BASIS)
    for byte in ngram.encode():
        signed = byte | 0xFFFFFF00 if byte > 127 else byte  # fastText casts each byte to int8_t
        value = (value ^ signed) * int(_FNV_PRIME) & 0xFFFFFFFF
    return value


def ngram_buckets(words: Sequence[str], config: SubwordConfig) -> tuple[Longs, Longs]:
    """Return the buckets of the n-grams of all words, end to end, and the number for each word.

    >>> buckets, sizes = ngram_buckets(["a", "where"], SubwordConfig(min_n=3, max_n=3, buckets=50))
    >>> sizes.tolist(), buckets[1].item() == hash_ngram("<wh") % 50
    ([1, 5], True)
    """
    marked = [f"<{word}>" for word in words]
    lengths = np.array([len(word) for word in marked], dtype=np.int64)
    data, starts = _character_starts("".join(marked))
    word_ends = np.repeat(np.cumsum(lengths), lengths)  # (C,)
    word_numbers = np.repeat(np.arange(len(words)), lengths)  # (C,)
    hashes, owners = [], []
    for n in range(config.min_n, config.max_n + 1):
        first = np.flatnonzero(np.arange(len(word_ends)) + n <= word_ends)
        hashes.append(_hash_spans(data, starts[first], starts[first + n]))
        owners.append(word_numbers[first])
    owner = np.concatenate([*owners, np.empty(0, dtype=np.int64)])  # (M,)
    order = np.argsort(owner, kind="stable")
    buckets = np.concatenate([*hashes, np.empty(0, dtype=np.uint32)])[order] % config.buckets
    return buckets.astype(np.int64), np.bincount(owner, minlength=len(words))


def _character_starts(text: str) -> tuple[NDArray[np.uint8], Longs]:
    """Return the UTF-8 bytes of a text, and where each character begins; the end."""
    data = np.frombuffer(text.encode(), dtype=np.uint8)
    return data, np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data))


def _hash_spans(data: NDArray[np.uint8], starts: Longs, ends: Longs) -> Hashes:
    """Hash many spans of bytes at the same time, one byte of each after the other."""
    signed = data.view(np.int8).astype(np.int32).view(np.uint32)
    hashes = np.full(len(starts), _FNV_BASIS, dtype=np.uint32)
    for offset in range(int((ends - starts).max(initial=0))):
        inside = starts + offset < ends
        hashes[inside] = (hashes[inside] ^ signed[starts[inside] + offset]) * _FNV_PRIME
    return hashes
