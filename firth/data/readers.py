"""Readers of text files in all formats and compressions, streaming in bounded memory.

A reader takes an open stream and yields its texts or rows. A row of more than MAX_ROW_BYTES is an
error; a document of more than MAX_CHARS is split.
"""

from __future__ import annotations

import glob
import io
import lzma
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from firth.data.compression import COMPRESSIONS
from firth.data.tables import (
    Table,
    begins_json,
    csv_table,
    dataset_rows,
    json_object,
    named_fields,
    parquet_table,
    text_column,
    tsv_table,
)
from firth.utils.errors import InputError, UsageError

MAX_CHARS = 2 << 20
MAX_ROW_BYTES = 16 << 20
INVALID = re.compile(
    "[\ud800-\udfff]"
)  # `surrogateescape` decodes bytes that are not UTF-8 to these

Convention = Literal["block", "line", "file", "row"]
Tally = Counter[str]  # numbers of repairs, by kind
Row = tuple[int, dict[str, Any]]  # line or row number, fields
Bad = Callable[[InputError], None]  # called with the error of an invalid row, which is skipped


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of reading files."""

    # Plain text: a document is a block between blank lines, a line or a file. "row" is a line, also
    # if empty, that is truncated instead of split if too long.
    documents: Convention = "block"
    column: str = "text"  # the field with the text, in formats with rows
    format: str | None = None  # of standard input and files with an unknown extension
    strict: bool = False  # raise an error for bytes that are not UTF-8 instead of replacing them


Reader = Callable[[str, BinaryIO, ReadOptions, Tally], Iterator[str]]
RowReader = Callable[[str, BinaryIO, ReadOptions, Tally, Bad | None], Iterator[Row]]
TableReader = Callable[[str, BinaryIO, ReadOptions, Tally, Bad | None], Table]


@dataclass(frozen=True)
class InputFile:
    """One input file with its format."""

    name: str
    format: str
    compression: str = ""
    guess_format: bool = False  # standard input: plain text or JSONL

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once, like standard input or a pipe."""
        return self.format != "datasets" and not os.path.isfile(self.name)

    @property
    def size(self) -> int:
        """Size in bytes; 0 if unknown."""
        return os.path.getsize(self.name) if os.path.isfile(self.name) else 0

    def open(self) -> BinaryIO:
        """Open the file for reading bytes."""
        if self.format == "datasets":
            return io.BytesIO()
        try:
            return open(0, "rb", closefd=False) if self.name == "-" else open(self.name, "rb")
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def detect_format(self, raw: BinaryIO) -> InputFile:
        """Detect JSONL on standard input: it begins with a JSON object."""
        with suppress(OSError):  # reported by the reader
            if self.guess_format and begins_json(cast(io.BufferedReader, raw).peek(1 << 13)):
                return replace(self, format="jsonl", guess_format=False)
        return self

    def documents(self, raw: BinaryIO, reading: ReadOptions, tally: Tally) -> Iterator[str]:
        """Yield the texts of an opened file."""
        if self.format == "datasets":
            yield from _read_dataset(self.name, reading, tally)
            return
        read = FORMATS[self.detect_format(raw).format]
        with self._stream(raw) as stream:
            for text in read(self.name, stream, reading, tally):
                if len(text) <= MAX_CHARS:
                    yield text
                    continue
                yield from islice(_parts(text, tally), 1 if reading.documents == "row" else None)

    def rows(
        self, raw: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
    ) -> Iterator[Row]:
        """Yield the fields of each row, with its first line (Parquet, datasets: its number)."""
        if self.format == "datasets":
            yield from enumerate(dataset_rows(self.name), 1)
            return
        with self._stream(raw) as stream:
            yield from ROWS[self.format](self.name, stream, reading, tally, bad)

    def lines(
        self, raw: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield the lines, numbered from 1."""
        with self._stream(raw) as stream:
            for number, line in _lines(self.name, stream, reading, tally, cut=False, bad=bad):
                if _is_valid(line):
                    yield number, line

    def content(self, raw: BinaryIO, max_bytes: int) -> bytes:
        """Return all bytes, decompressed; raise an error if they are more than `max_bytes`."""
        with self._stream(raw) as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            size = f"{max_bytes >> 20} MiB"
            raise InputError(f"{self.name} holds more than {size}; split it, or use JSONL.")
        return content

    @contextmanager
    def _stream(self, raw: BinaryIO) -> Iterator[BinaryIO]:
        """Decompress the file if needed; turn errors of the decompressor into an InputError."""
        try:
            stream = COMPRESSIONS[self.compression](raw)
            if self.format != "parquet":
                _refuse_binary(self.name, stream)
            yield stream
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error) from error
        except OSError as error:
            if error.errno is None:  # from the decompressor, not the operating system
                raise self._damaged(error) from error
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.name} is damaged or incomplete ({error}); download it again.")


def find_sources(paths: Iterable[str | Path], reading: ReadOptions) -> tuple[list[InputFile], int]:
    """Resolve files, folders, globs, `-` and `datasets:NAME` to input files, in a fixed order.

    Also return the number of files in folders that were skipped for their unknown extension.
    """
    sources: list[InputFile] = []
    skipped = 0
    for path in map(str, paths):
        if path == "-":
            unknown = reading.format is None
            sources.append(InputFile("-", reading.format or "txt", guess_format=unknown))
            continue
        if path.startswith("datasets:"):
            sources.append(InputFile(path.removeprefix("datasets:"), "datasets"))
            continue
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            what = "No file matches" if glob.has_magic(path) else "There is no file or folder"
            raise InputError(f"{what} {path}.")
        for match in matches:
            if os.path.isdir(match):
                inside = [_source(file, None) for file in _walk(match)]
                sources += [source for source in inside if source]
                skipped += inside.count(None)
            else:
                sources.append(_named_source(match, reading.format))
    if not sources:
        raise InputError(f"There is no file to read in {', '.join(map(str, paths))}.")
    unique = {(os.path.abspath(source.name), source.format): source for source in reversed(sources)}
    return list(unique.values())[::-1], skipped


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder, sorted, without hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(root, name) for name in sorted(files) if name[0] != ".")


def _source(path: str, default: str | None) -> InputFile | None:
    stem, ending = os.path.splitext(path.lower())
    compression = ending if ending and ending in COMPRESSIONS else ""
    format = (os.path.splitext(stem)[1] if compression else ending).removeprefix(".")
    format = format if format in FORMATS else default or ""
    return InputFile(path, format, compression) if format else None


def _named_source(path: str, default: str | None) -> InputFile:
    source = _source(path, default)
    if source is None:
        raise UsageError(
            f"{path} has an unknown extension (known: {', '.join(FORMATS)}, each also with "
            f"{' '.join(filter(None, COMPRESSIONS))}); give its format with --format."
        )
    return source


# ---- plain text -------------------------------------------------------------------------------


def _read_text(name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally) -> Iterator[str]:
    if reading.documents == "row":
        yield from _read_rows(name, stream, reading, tally)
        return
    yield from (row["text"] for _, row in _text_rows(name, stream, reading, tally))


def _text_rows(
    name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
) -> Iterator[Row]:
    block: list[str] = []
    size, begin = 0, 1
    for number, line in _lines(name, stream, reading, tally, cut=True, bad=bad):
        if not _is_valid(line):
            continue
        blank = not line or line.isspace()
        full = size + len(line) > MAX_CHARS
        ends = reading.documents == "line" or (blank and reading.documents == "block")
        if block and (ends or full):
            tally["long documents cut"] += full
            yield begin, {"text": "".join(block)}
            block, size = [], 0
        if not blank or reading.documents == "file":
            begin = begin if block else number
            block.append(line)
            size += len(line)
    if block:
        yield begin, {"text": "".join(block)}


def _read_rows(name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally) -> Iterator[str]:
    last = 0
    for number, line in _lines(name, stream, reading, tally, cut=True):
        if number > last:
            yield line.rstrip("\r\n")
        else:  # the rest of a line that is too long
            tally["long documents cut"] += 1
        last = number


def _lines(
    name: str,
    stream: BinaryIO,
    reading: ReadOptions,
    tally: Tally,
    cut: bool,
    bad: Bad | None = None,
) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; invalid bytes are replaced and counted, or an error if strict.

    With `bad`, they are reported and stay in the line, so that the whole row can be skipped.
    """
    offset, number = 0, 1
    for raw in _raw_lines(stream) if cut else iter(partial(stream.readline, MAX_ROW_BYTES), b""):
        if not cut and len(raw) == MAX_ROW_BYTES and not raw.endswith(b"\n"):
            raise InputError(f"{name} line {number} is longer than {MAX_ROW_BYTES >> 20} MiB.")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            line, replaced = raw.decode("utf-8", "surrogateescape"), 0
            if reading.strict:
                complaint = InputError(
                    f"{name} line {number}: byte {offset + error.start} of the file is not UTF-8; "
                    "convert it with iconv."
                )
                if bad is None:
                    raise complaint from error
                bad(complaint)
            else:
                line, replaced = INVALID.subn("\ufffd", line)
            tally["invalid bytes replaced"] += replaced
        yield number, line.removeprefix("\ufeff") if offset == 0 else line
        offset += len(raw)
        if raw.endswith(b"\n"):
            number += 1


def _is_valid(text: str) -> bool:
    """Return whether a text has no undecoded bytes."""
    return text.isascii() or not INVALID.search(text)


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield lines, split after a space or a character if longer than MAX_CHARS bytes."""
    rest = b""
    while raw := stream.readline(MAX_CHARS - len(rest)):
        raw, rest = rest + raw, b""
        if len(raw) == MAX_CHARS and not raw.endswith(b"\n"):
            end = raw.rfind(b" ", MAX_CHARS // 2) + 1
            if not end:
                end = len(raw) - 1
                while end > MAX_CHARS - 4 and raw[end] & 0xC0 == 0x80:
                    end -= 1
            raw, rest = raw[:end], raw[end:]
        yield raw
    if rest:
        yield rest


def _parts(text: str, tally: Tally) -> Iterator[str]:
    """Split a text into parts of at most MAX_CHARS characters, at spaces if possible."""
    tally["long documents cut"] += 1
    while len(text) > MAX_CHARS:
        end = text.rfind(" ", MAX_CHARS // 2, MAX_CHARS) + 1 or MAX_CHARS
        yield text[:end]
        text = text[end:]
    yield text


def _refuse_binary(name: str, stream: BinaryIO) -> None:
    head = cast(io.BufferedReader, stream).peek(1 << 13)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8.")
    if (zero := head.find(b"\0")) >= 0:
        raise InputError(f"{name} is not text: byte {zero} is zero.")


# ---- rows -------------------------------------------------------------------------------------


def _json_rows(
    name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
) -> Iterator[Row]:
    for number, line in _lines(name, stream, reading, tally, cut=False, bad=bad):
        if not line.strip() or not _is_valid(line):
            continue
        try:
            row = json_object(line, f"{name} line {number}")
        except InputError as error:
            if bad is None:
                raise
            bad(error)
        else:
            yield number, row


def _read_json_lines(
    name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally
) -> Iterator[str]:
    rows = ((f"{name} line {n}", row) for n, row in _json_rows(name, stream, reading, tally))
    return _texts_of(rows, reading, tally)


def _texts_of(
    rows: Iterator[tuple[str, dict[str, Any]]], reading: ReadOptions, tally: Tally
) -> Iterator[str]:
    """Yield the texts of rows, from the column that the first row has."""
    first = True
    for where, row in rows:
        found = text_column(where, reading.column, row, first)
        if first:
            reading, first = replace(reading, column=found), False
        yield text_field(where, row[reading.column], reading, tally)


def _lines_as(make: Callable[[str, Iterable[str], int, Bad | None], Table]) -> TableReader:
    """Return a reader of line-based tables; rows with reported invalid bytes are skipped."""

    def read(
        name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None
    ) -> Table:
        lines = (line for _, line in _lines(name, stream, reading, tally, cut=False, bad=bad))
        return (row for row in make(name, lines, MAX_ROW_BYTES, bad) if all(map(_is_valid, row[1])))

    return read


def _column_of(table: TableReader) -> Reader:
    """Return a reader of the text column."""

    def read(name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally) -> Iterator[str]:
        rows = table(name, stream, reading, tally, None)
        line, header = next(rows, (1, [reading.column]))
        place = header.index(text_column(f"{name} line {line}", reading.column, header))
        return (row[place] for _, row in rows)

    return read


def _read_parquet(name: str, stream: BinaryIO, reading: ReadOptions, tally: Tally) -> Iterator[str]:
    rows = parquet_table(name, stream, reading.column)
    next(rows)
    for number, (value,) in rows:
        yield text_field(f"{name} row {number}", value, reading, tally)


def _rows_of(table: TableReader) -> RowReader:
    return lambda name, *options: named_fields(name, table(name, *options))


def _read_dataset(name: str, reading: ReadOptions, tally: Tally) -> Iterator[str]:
    rows = ((f"datasets:{name} row {n}", row) for n, row in enumerate(dataset_rows(name), 1))
    return _texts_of(rows, reading, tally)


def text_field(where: str, value: Any, reading: ReadOptions, tally: Tally) -> str:
    """Return the text of a field; replace lone surrogates, which JSON can contain."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{where}: '{reading.column}' is not text but {type(value).__name__} ({value!r:.40})."
        )
    if not value.isascii() and INVALID.search(value):
        if reading.strict:
            raise InputError(f"{where}: '{reading.column}' contains a lone surrogate.")
        repaired, replaced = INVALID.subn("\ufffd", value)
        tally["invalid bytes replaced"] += replaced
        return repaired
    return value


FORMATS: dict[str, Reader] = {
    "txt": _read_text,
    "md": _read_text,
    "jsonl": _read_json_lines,
    "csv": _column_of(_lines_as(csv_table)),
    "tsv": _column_of(_lines_as(tsv_table)),
    "parquet": _read_parquet,
}

ROWS: dict[str, RowReader] = {
    "txt": _text_rows,
    "md": _text_rows,
    "jsonl": _json_rows,
    "csv": _rows_of(_lines_as(csv_table)),
    "tsv": _rows_of(_lines_as(tsv_table)),
    "parquet": _rows_of(lambda name, stream, *_: parquet_table(name, stream)),
}
