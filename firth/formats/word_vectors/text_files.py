"""Word vectors as text: a word and its numbers in each line, separated by spaces.

word2vec and fastText (`.vec`) write a first line with the number of words and of dimensions; GloVe
writes none. Files of GloVe have words with spaces, so numbers are counted from the right.

V  words     W  numbers of a vector     n  rows of a block
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from firth.formats.word_vectors.word_vectors import SHOWN, Matrix, VectorCollector, WordVectors
from firth.utils.errors import InputError

HEADER = re.compile(rb"\s*(\d{1,15})[ \t]+(\d{1,9})[ \t\r]*")
BLOCK = 1 << 22  # bytes of lines that are parsed together
MAX_LINE = 1 << 24  # bytes
FORMATS = (
    "a file of word vectors (word2vec text or binary, GloVe, fastText .vec, NumPy .npz or .npy)"
)
SAMPLE = 100  # lines whose most frequent number of columns is that of the file


class VectorHeader(NamedTuple):
    """The first line of word2vec's files."""

    words: int
    width: int


@dataclass
class TextRows:
    """What the lines of a file have in common, and notes on those that are unusual."""

    name: str
    width: int
    spaced: list[str] = field(default_factory=list)  # words with spaces and their lines
    invalid: list[int] = field(default_factory=list)  # lines with invalid UTF-8

    @property
    def notes(self) -> list[str]:
        """Say how unusual lines were read."""
        notes = []
        if self.spaced:
            notes.append(
                f"Words with spaces in {self.name}: {len(self.spaced):,}, such as "
                f"{', '.join(self.spaced[:SHOWN])}; numbers are counted from the right."
            )
        if self.invalid:
            notes.append(
                f"Lines of {self.name} with bytes that are not UTF-8: {len(self.invalid):,}, first "
                f"line {self.invalid[0]}; these bytes are replaced by U+FFFD."
            )
        return notes


def read_text(name: str, stream: BinaryIO, limit: int = 0, size: int = 0) -> WordVectors:
    """Read the words of a stream, or the first `limit`; `size` is that of a plain file in bytes.

    >>> import io
    >>> read_text("moon.txt", io.BytesIO(b"2 3\\nsun 1 0 0\\nmoon 0 .5 0\\n")).vectors.tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]
    """
    blocks = line_blocks(name, stream)
    block = next(blocks, b"")
    lines = block.split(b"\n", SAMPLE + 1)[: SAMPLE + 1]
    header = find_header(lines)
    width = header.width if header else _common_width(name, lines)
    collector, rows = VectorCollector(name, width, limit=limit), TextRows(name, width)
    if header is not None:
        block = block[len(lines[0]) + 1 :]
        check_header(name, header, size, (2 * width + 2) if size else 0)
        collector.check_size(header.words)
    line = 2 if header else 1
    while block and not collector.full:
        _add_block(rows, block, line, collector)
        line += block.count(b"\n")
        block = next(blocks, b"")
    if header and not collector.full and collector.rows != header.words:
        raise InputError(
            f"{name} line 1 announces {header.words:,} words, but there are {collector.rows:,}; "
            f"download the file again, or correct the line to `{collector.rows} {width}`."
        )
    return collector.finish(rows.notes)


def line_blocks(name: str, stream: BinaryIO) -> Iterator[bytes]:
    """Yield blocks of whole lines."""
    rest = b""
    while data := stream.read(BLOCK):
        whole, newline, end = data.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = end
        else:
            rest += data
        if len(rest) > MAX_LINE:
            raise InputError(
                f"{name} has a line of more than {MAX_LINE >> 20} MiB: no word vectors."
            )
    if rest:
        yield rest


def find_header(lines: list[bytes]) -> VectorHeader | None:
    """Return the numbers of the first line, if it is a header and not a word with one number.

    >>> find_header([b"400000 50", b"the 0.4 0.2"]), find_header([b"7 1", b"8 2"])
    (VectorHeader(words=400000, width=50), VectorHeader(words=7, width=1))
    >>> find_header([b"7 3", b"8 2"]), find_header([b"the 0.4"])
    (None, None)
    """
    found = HEADER.fullmatch(lines[0])
    if found is None:
        return None
    header = VectorHeader(int(found[1]), int(found[2]))
    columns = len(lines[1].split()) - 1 if len(lines) > 1 else 0
    return header if columns != 1 or header.width == 1 else None


def check_header(name: str, header: VectorHeader, size: int, row_bytes: int) -> None:
    """Raise InputError for a header that cannot be true, before memory is allocated."""
    if not header.words or not header.width:
        raise InputError(
            f"{name} line 1 announces {header.words:,} words of {header.width:,} numbers: both "
            "must be at least 1."
        )
    if header.words * row_bytes > size:
        raise InputError(
            f"{name} line 1 announces {header.words:,} words of {header.width:,} numbers, but the "
            f"file has only {size:,} bytes: it is incomplete, or its first line is wrong."
        )


def _common_width(name: str, lines: list[bytes]) -> int:
    """Return the most frequent number of numbers in the first lines that end with one."""
    columns = [line.decode(errors="replace").split() for line in lines[:SAMPLE] if line.strip()]
    if not columns:
        raise InputError(f"{name} is empty: each line of a vector file is a word and its numbers.")
    counts = Counter(len(row) - 1 for row in columns if len(row) > 1 and _is_number(row[-1]))
    if not counts:
        raise InputError(f"{name} is no model: it is neither a directory nor {FORMATS}.")
    return counts.most_common(1)[0][0]


def _add_block(rows: TextRows, block: bytes, line: int, collector: VectorCollector) -> None:
    """Parse a block at once or, if a line is unusual, line by line."""
    try:
        words, matrix = _parse_block(block, rows.width)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        for number, content in enumerate(block.split(b"\n"), line):
            if content.strip():
                word, vector = _parse_line(rows, content, number)
                collector.add([word], vector[None], number)
        return
    collector.add(words, matrix, line)


def _parse_block(block: bytes, width: int) -> tuple[list[str], Matrix]:
    """Parse lines in C; raise ArrowInvalid unless each is one word and `width` numbers."""
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    plain = block.replace(b"\t", b" ").replace(b" \n", b"\n")  # word2vec ends lines with a space
    names = ["word", *map(str, range(width))]
    types = {name: pa.float32() for name in names[1:]} | {"word": pa.string()}
    table = csv.read_csv(
        pa.BufferReader(plain),
        csv.ReadOptions(column_names=names, block_size=len(plain) + 1),
        csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False),
        csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
    )
    words = table.column(0).to_pylist()
    if len(words) != lines or not all(words):
        raise pa.ArrowInvalid("a blank line, or one without a word")
    columns = [table.column(i).to_numpy() for i in range(1, width + 1)]
    return words, np.stack(columns, axis=1)  # (n, W)


def _parse_line(rows: TextRows, content: bytes, line: int) -> tuple[str, Matrix]:
    """Parse one line; raise InputError if it is not a word and `width` numbers."""
    text = content.decode(errors="replace").replace("\t", " ").strip(" \r")
    if "\ufffd" in text and b"\xef\xbf\xbd" not in content:
        rows.invalid.append(line)
    word, *numbers = text.rsplit(" ", rows.width)
    word = word.strip(" ")
    if (
        len(numbers) < rows.width
        or not word
        or (" " in word and _is_number(word.rpartition(" ")[2]))
    ):
        raise InputError(
            f"{rows.name} line {line} has {_count_numbers(text):,} numbers, where the others have "
            f"{rows.width:,} (ragged rows): {text[:40]!r}…; remove or correct it."
        )
    for number in numbers:
        if not _is_number(number):
            raise InputError(
                f"{rows.name} line {line}: {number[:40]!r} is not a number, in the vector of "
                f"{word[:40]!r}."
            )
    if " " in word:
        rows.spaced.append(f"{word!r} (line {line})")
    with np.errstate(over="ignore"):  # infinity is reported by the collector
        return word, np.array(numbers, dtype=np.float64).astype(np.float32)


def _is_number(text: str) -> bool:
    """Return whether a text is a number.

    >>> _is_number("-1e-3"), _is_number(".")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def _count_numbers(text: str) -> int:
    """Count the columns of a line after the first."""
    return len(text.split()) - 1
