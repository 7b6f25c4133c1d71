"""Word vectors in word2vec's binary format: a header line, then each word, a space and its floats.

The numbers are 32-bit floats, little-endian. A newline may follow each vector.

V  words     W  numbers of a vector
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from firth.formats.word_vectors.text_files import BLOCK, HEADER, VectorHeader, check_header
from firth.formats.word_vectors.word_vectors import VectorCollector, WordVectors
from firth.utils.errors import InputError

MAX_WORD = 1 << 16  # bytes
ROWS = 4096  # added together


def read_binary(name: str, stream: BinaryIO, limit: int = 0, size: int = 0) -> WordVectors:
    """Read the words of a stream, or the first `limit`; `size` is that of a plain file in bytes.

    >>> import io; row = b"sun " + np.array([1, 0.5], "<f4").tobytes()
    >>> read_binary("sun.bin", io.BytesIO(b"1 2\\n" + row)).vectors.tolist()
    [[1.0, 0.5]]
    """
    found = HEADER.fullmatch(stream.readline(100).rstrip(b"\n"))
    if found is None:
        raise InputError(f"{name} does not begin with the number of words and of dimensions.")
    header = VectorHeader(int(found[1]), int(found[2]))
    check_header(name, header, size, (4 * header.width + 2) if size else 0)
    collector = VectorCollector(name, header.width, limit=limit, unit="word")
    collector.check_size(header.words)
    records = _Records(name, header, stream)
    while records.done < header.words and not collector.full:
        first = records.done + 1
        words, rows = records.read(min(ROWS, header.words - records.done))
        collector.add(words, np.frombuffer(rows, "<f4").reshape(-1, header.width), first)
    if not collector.full and records.rest().strip():
        raise InputError(
            f"{name} line 1 announces {header.words:,} words, but the file goes on after them; "
            "download it again, or correct its first line."
        )
    return collector.finish(records.notes)


class _Records:
    """Reads one record after the other from blocks of a stream."""

    def __init__(self, name: str, header: VectorHeader, stream: BinaryIO) -> None:
        self.name, self.header, self.stream = name, header, stream
        self.buffer, self.position = b"", 0
        self.done = 0
        self.invalid: list[int] = []  # words with invalid UTF-8

    @property
    def notes(self) -> list[str]:
        """Say how invalid words were read."""
        if not self.invalid:
            return []
        return [
            f"Words of {self.name} with bytes that are not UTF-8: {len(self.invalid):,}, first "
            f"word {self.invalid[0]}; these bytes are replaced by U+FFFD."
        ]

    def read(self, count: int) -> tuple[list[str], bytes]:
        """Read records: their words, and the bytes of their vectors."""
        words, rows = [], []
        for _ in range(count):
            words.append(self._word())
            rows.append(self._bytes(4 * self.header.width))
        return words, b"".join(rows)

    def rest(self) -> bytes:
        """Return some bytes after the records; nothing at the end of the file."""
        return self.buffer[self.position :] + self.stream.read(BLOCK)

    def _word(self) -> str:
        while (end := self.buffer.find(b" ", self.position)) < 0:
            if len(self.buffer) - self.position > MAX_WORD:
                raise InputError(
                    f"{self.name}: no word of word2vec's binary format begins after word "
                    f"{self.done}; the file is damaged, or of another format."
                )
            self._fill()
        word = self.buffer[self.position : end].lstrip(b"\n")
        self.position = end + 1
        self.done += 1
        text = word.decode(errors="replace")
        if "\ufffd" in text and b"\xef\xbf\xbd" not in word:
            self.invalid.append(self.done)
        return text

    def _bytes(self, count: int) -> bytes:
        while len(self.buffer) - self.position < count:
            self._fill()
        self.position += count
        return self.buffer[self.position - count : self.position]

    def _fill(self) -> None:
        data = self.stream.read(BLOCK)
        if not data:
            raise InputError(
                f"{self.name} ends in word {max(1, self.done):,} of the {self.header.words:,} that "
                "its first line announces: it is incomplete; download it again."
            )
        self.buffer, self.position = self.buffer[self.position :] + data, 0
