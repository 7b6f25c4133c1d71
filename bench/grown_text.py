"""Write a text of any size by repeating a small corpus, with new misspellings in each repetition.

Plain repetition would add no new words, but real text keeps having new ones. Hence about 2 % of the
words of each repetition get two letters swapped or one letter replaced. The number of the
repetition is the random seed, so every run writes the same text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firth import Corpus
from firth.data.cleaning import clean
from firth.data.stories import generate_story

Bytes = NDArray[np.uint8]

MISSPELLED_FRACTION = 0.02  # of all words
MIN_BASE_SIZE = 16_000_000  # bytes: a smaller corpus is repeated up to this size at first
GAP = "\n\n"  # separator of two documents


def write_text(source: str | Path | None, megabytes: float, out: Path) -> None:
    """Write `megabytes` MB of clean documents from a corpus file or Firth's stories."""
    candidates = (
        Corpus([source]) if source else (generate_story(0, number).text for number in range(20_000))
    )
    texts = [text for text in candidates if clean(text).text == text]
    corpus = "".join(text + GAP for text in texts).encode()
    base = np.frombuffer(corpus * math.ceil(MIN_BASE_SIZE / len(corpus)), dtype=np.uint8)
    remaining = int(megabytes * 1e6)
    with open(out, "wb") as file:
        for repetition in _misspell(base):
            if len(repetition) >= remaining:
                file.write(_drop_cut_document(repetition[:remaining].tobytes()))
                return
            remaining -= file.write(repetition.tobytes())


def read_documents(path: Path) -> Iterator[str]:
    """Yield the documents of a file written by `write_text`."""
    rest = ""
    with open(path, encoding="utf-8", newline="\n") as file:
        while chunk := file.read(1 << 20):
            *complete, rest = (rest + chunk).split(GAP)
            yield from complete
    if rest:
        yield rest


def _misspell(base: Bytes) -> Iterator[Bytes]:
    """Yield an endless series of copies of a text, each with other misspellings."""
    is_letter = (base >= ord("a")) & (base <= ord("z"))
    is_inner = np.zeros(len(base), dtype=bool)  # a letter between two others
    is_inner[1:-1] = is_letter[:-2] & is_letter[1:-1] & is_letter[2:]
    num_words = np.count_nonzero(np.isin(base, [ord(" "), ord("\n")]))
    # Only inner letters are changed, so other positions are drawn in vain.
    num_draws = int(MISSPELLED_FRACTION * num_words / is_inner.mean())
    for repetition in count():
        rng = np.random.default_rng(repetition)
        positions = rng.integers(len(base), size=num_draws)
        swapped, replaced = np.array_split(positions[is_inner[positions]], 2)
        text = base.copy()
        text[swapped], text[swapped + 1] = base[swapped + 1], base[swapped]
        text[replaced] = rng.integers(ord("a"), ord("z") + 1, size=len(replaced))
        yield text


def _drop_cut_document(text: bytes) -> bytes:
    """Return a text without its last document, which may be cut, unless it is the only one."""
    end = text.rfind(GAP.encode())
    return text if end < 0 else text[: end + len(GAP)]
