"""Word vectors in memory, and the rules that hold for every file of them.

A vector with a number that is not finite is an error. Of a word that occurs twice, the first vector
is kept. Both name the file and the line.

V  words     W  numbers of a vector     n  rows of a block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from firth.utils.errors import InputError

Matrix = NDArray[np.float32]

MAX_BYTES = 16 << 30  # of a matrix that is read
FIRST_ROWS = 1024  # allocated at first; the matrix grows by half
SHOWN = 3  # examples in a note


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors, in the order of the file: mostly by frequency.

    >>> WordVectors(["sun", "moon"], np.eye(2, dtype=np.float32)).dimension
    2
    """

    words: list[str]  # (V,) distinct
    vectors: Matrix  # (V, W)
    source: str = "word vectors"
    notes: tuple[str, ...] = ()  # on what the file did not say plainly

    @property
    def dimension(self) -> int:
        """The size of a vector."""
        return self.vectors.shape[1]

    @cached_property
    def lowercase(self) -> bool:
        """Whether no word has an upper-case letter, so that texts must be lower-cased."""
        return all(word == word.lower() for word in self.words)


class VectorCollector:
    """Collects blocks of rows in a matrix that grows, up to `limit` words or MAX_BYTES.

    >>> rows = VectorCollector("v.txt", width=1)
    >>> rows.add(["a", "b"], np.ones((2, 1), dtype=np.float32), first=1)
    >>> rows.add(["a"], np.zeros((1, 1), dtype=np.float32), first=3)
    >>> found = rows.finish()
    >>> found.words, found.notes
    (['a', 'b'], ("1 row of v.txt repeats a word, whose first vector is kept: 'a' (line 3).",))
    """

    def __init__(self, name: str, width: int, *, limit: int = 0, unit: str = "line") -> None:
        self.name, self.width, self.limit, self.unit = name, width, limit, unit
        self.rows = 0  # also those of repeated words
        self.ids: dict[str, int] = {}
        self.matrix: Matrix = np.zeros((0, width), dtype=np.float32)
        self.repeated: list[str] = []  # with their lines, the first ones
        self.repetitions = 0
        self.check_size(1)

    @property
    def full(self) -> bool:
        """Whether `limit` words were read."""
        return 0 < self.limit <= len(self.ids)

    def check_size(self, count: int) -> None:
        """Raise InputError if a number of rows is too large, before memory is allocated."""
        count = min(count, self.limit) if self.limit else count
        if count * self.width * 4 > MAX_BYTES:
            raise InputError(
                f"{self.name} has {count:,} vectors of {self.width:,} numbers, more than the "
                f"{MAX_BYTES >> 30} GiB that are read; read its first words only, with `limit`."
            )

    def add(self, words: Sequence[str], block: Matrix, first: int) -> None:
        """Add rows; `first` is the line of the first one."""
        if not (finite := np.isfinite(block).all(axis=1)).all():
            row = int(np.argmin(finite))
            raise InputError(
                f"{self.name} {self.unit} {first + row}: the vector of {words[row]!r} has a number "
                "that is not finite (NaN or infinity, or too large for 32 bits); remove the word."
            )
        self.rows += len(words)
        kept = []
        for row, word in enumerate(words):
            if self.full:
                break
            if word in self.ids:
                self._repeat(word, first + row)
            else:
                self.ids[word] = len(self.ids)
                kept.append(row)
        self._append(block if len(kept) == len(block) else block[kept])

    def _repeat(self, word: str, line: int) -> None:
        self.repetitions += 1
        if len(self.repeated) < SHOWN:
            self.repeated.append(f"{word!r} ({self.unit} {line})")

    def _append(self, block: Matrix) -> None:
        end = len(self.ids)
        if end > len(self.matrix):
            self.check_size(end)
            rows = max(end, FIRST_ROWS, len(self.matrix) * 3 // 2)
            # Nothing else refers to the matrix: the memory is moved at most, never held twice.
            self.matrix.resize((rows, self.width), refcheck=False)
        self.matrix[end - len(block) : end] = block

    def finish(self, notes: Sequence[str] = ()) -> WordVectors:
        """Return the vectors; raise InputError if there are none."""
        if not self.ids:
            raise InputError(f"{self.name} has no vectors: each {self.unit} is a word and numbers.")
        self.matrix.resize((len(self.ids), self.width), refcheck=False)
        repeats = []
        if self.repetitions:
            rows = "1 row" if self.repetitions == 1 else f"{self.repetitions:,} rows"
            verb = "repeats" if self.repetitions == 1 else "repeat"
            repeats = [
                f"{rows} of {self.name} {verb} a word, whose first vector is kept: "
                f"{', '.join(self.repeated)}."
            ]
        return WordVectors(list(self.ids), self.matrix, self.name, (*notes, *repeats))
