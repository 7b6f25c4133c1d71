"""A text of any size out of a small one: repeated, with other misspellings each time.

Repeating alone would add no words. Real text does not stop having new ones, so about 2 % of the
words get two letters swapped or one replaced, drawn anew for each repetition, always the same way.
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

MISSPELT = 0.02  # of all words
ROUND = 16_000_000  # bytes: a shorter text is repeated so far before it is misspelt
GAP = "\n\n"  # between two documents


def write_text(source: str | None, megabytes: float, out: Path) -> None:
    """Write so many million bytes of clean documents, made of a corpus file or Firth's stories."""
    found = (
        Corpus([source]) if source else (generate_story(0, number).text for number in range(20_000))
    )
    texts = [text for text in found if clean(text).text == text]
    once = "".join(text + GAP for text in texts).encode()
    base = np.frombuffer(once * math.ceil(ROUND / len(once)), dtype=np.uint8)
    left = int(megabytes * 1e6)
    with open(out, "wb") as file:
        for repetition in _misspelt(base):
            if len(repetition) >= left:
                file.write(_whole_documents(repetition[:left].tobytes()))
                return
            left -= file.write(repetition.tobytes())


def documents(path: Path) -> Iterator[str]:
    """The documents of such a text."""
    rest = ""
    with open(path, encoding="utf-8", newline="\n") as file:
        while chunk := file.read(1 << 20):
            *whole, rest = (rest + chunk).split(GAP)
            yield from whole
    if rest:
        yield rest


def _misspelt(base: Bytes) -> Iterator[Bytes]:
    letter = (base >= ord("a")) & (base <= ord("z"))
    inner = np.zeros(len(base), dtype=bool)  # a letter between two others
    inner[1:-1] = letter[:-2] & letter[1:-1] & letter[2:]
    words = np.count_nonzero(np.isin(base, [ord(" "), ord("\n")]))
    draws = int(MISSPELT * words / inner.mean())  # only an inner letter is changed
    for repetition in count():
        random = np.random.default_rng(repetition)
        places = random.integers(len(base), size=draws)
        swapped, replaced = np.array_split(places[inner[places]], 2)
        text = base.copy()
        text[swapped], text[swapped + 1] = base[swapped + 1], base[swapped]
        text[replaced] = random.integers(ord("a"), ord("z") + 1, size=len(replaced))
        yield text


def _whole_documents(text: bytes) -> bytes:
    """A text without its last document, which may be cut short, unless that is all there is."""
    end = text.rfind(GAP.encode())
    return text if end < 0 else text[: end + len(GAP)]
