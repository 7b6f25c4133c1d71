"""From paths to raw documents: every format and compression, streamed in bounded memory.

A reader takes an open stream and yields the texts in it, or its rows. It never holds more than
one row of LONGEST_ROW bytes; a longer one is refused. A document of more than LONGEST characters
is cut.
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

from firth.errors import InputError, Misuse
from firth.text.compression import COMPRESSIONS
from firth.text.tables import (
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

LONGEST = 2 << 20
LONGEST_ROW = 16 << 20
INVALID = re.compile("[\ud800-\udfff]")  # what `surrogateescape` makes of a byte that is not UTF-8

Convention = Literal["block", "line", "file", "row"]
Tally = Counter[str]  # what was repaired or skipped on the way
Row = tuple[int, dict[str, Any]]  # where it stands, what its fields hold
Bad = Callable[[InputError], None]  # is told of a row that cannot be read; the next one follows


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    # Plain text: a document is a block between blank lines, a line or a file. As a row, an empty
    # line is one as well, and what is too long loses its end instead of being cut in two.
    documents: Convention = "block"
    column: str = "text"  # rows: the field that holds the text
    format: str | None = None  # what standard input and files of unknown ending hold
    strict: bool = False  # refuse bytes that are not UTF-8 instead of replacing them


Reader = Callable[[str, BinaryIO, Reading, Tally], Iterator[str]]
RowReader = Callable[[str, BinaryIO, Reading, Tally, Bad | None], Iterator[Row]]
TableReader = Callable[[str, BinaryIO, Reading, Tally, Bad | None], Table]


@dataclass(frozen=True)
class Source:
    """One input, and how to read it."""

    name: str
    format: str
    compression: str = ""
    unsaid: bool = False  # standard input of which nobody said whether it is text or JSONL

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once: standard input, a pipe."""
        return self.format != "datasets" and not os.path.isfile(self.name)

    @property
    def size(self) -> int:
        """Bytes on the disk; 0 where that is not known."""
        return os.path.getsize(self.name) if os.path.isfile(self.name) else 0

    def open(self) -> BinaryIO:
        """The bytes as they are on the disk."""
        if self.format == "datasets":
            return io.BytesIO()
        try:
            return open(0, "rb", closefd=False) if self.name == "-" else open(self.name, "rb")
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def settled(self, raw: BinaryIO) -> Source:
        """What it is by what `open` returned: input that begins with a JSON object is JSONL."""
        with suppress(OSError):  # who reads on will tell
            if self.unsaid and begins_json(cast(io.BufferedReader, raw).peek(1 << 13)):
                return replace(self, format="jsonl", unsaid=False)
        return self

    def documents(self, raw: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
        """The texts in what `open` returned, one by one."""
        if self.format == "datasets":
            yield from _read_dataset(self.name, reading, tally)
            return
        read = FORMATS[self.settled(raw).format]
        with self._stream(raw) as stream:
            for text in read(self.name, stream, reading, tally):
                if len(text) <= LONGEST:
                    yield text
                    continue
                yield from islice(_parts(text, tally), 1 if reading.documents == "row" else None)

    def rows(
        self, raw: BinaryIO, reading: Reading, tally: Tally, bad: Bad | None = None
    ) -> Iterator[Row]:
        """All fields of each row, with the line it begins in (Parquet, datasets: its number)."""
        if self.format == "datasets":
            yield from enumerate(dataset_rows(self.name), 1)
            return
        with self._stream(raw) as stream:
            yield from ROWS[self.format](self.name, stream, reading, tally, bad)

    def lines(
        self, raw: BinaryIO, reading: Reading, tally: Tally, bad: Bad | None = None
    ) -> Iterator[tuple[int, str]]:
        """The lines as they are, numbered from 1."""
        with self._stream(raw) as stream:
            for number, line in _lines(self.name, stream, reading, tally, cut=False, bad=bad):
                if _is_sound(line):
                    yield number, line

    def content(self, raw: BinaryIO, most: int) -> bytes:
        """All bytes at once, decompressed; more than `most` are refused."""
        with self._stream(raw) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            raise InputError(
                f"{self.name} holds more than {most >> 20} MiB; divide it, or use JSONL."
            )
        return content

    @contextmanager
    def _stream(self, raw: BinaryIO) -> Iterator[BinaryIO]:
        """What is in the archive, if it is one; what goes wrong inside becomes a sentence."""
        try:
            stream = COMPRESSIONS[self.compression](raw)
            if self.format != "parquet":
                _refuse_binary(self.name, stream)
            yield stream
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error) from error
        except OSError as error:
            if error.errno is None:  # a decompressor's complaint, not the operating system's
                raise self._damaged(error) from error
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.name} is damaged or cut short ({error}); fetch it again.")


def find_sources(paths: Iterable[str | Path], reading: Reading) -> tuple[list[Source], int]:
    """All inputs that files, folders, globs, `-` and `datasets:NAME` stand for, in a fixed order.

    Folders are searched for the endings Firth knows; returned beside the sources is how many
    other files were passed over there.
    """
    sources: list[Source] = []
    skipped = 0
    for path in map(str, paths):
        if path == "-":
            sources.append(Source("-", reading.format or "txt", unsaid=reading.format is None))
            continue
        if path.startswith("datasets:"):
            sources.append(Source(path.removeprefix("datasets:"), "datasets"))
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
    """Files below a folder, sorted, without hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(root, name) for name in sorted(files) if name[0] != ".")


def _source(path: str, default: str | None) -> Source | None:
    stem, ending = os.path.splitext(path.lower())
    compression = ending if ending and ending in COMPRESSIONS else ""
    format = (os.path.splitext(stem)[1] if compression else ending).removeprefix(".")
    format = format if format in FORMATS else default or ""
    return Source(path, format, compression) if format else None


def _named_source(path: str, default: str | None) -> Source:
    source = _source(path, default)
    if source is None:
        raise Misuse(
            f"{path} has no ending that says what it holds (known: {', '.join(FORMATS)}, "
            f"each also {' '.join(filter(None, COMPRESSIONS))}); say it with --format."
        )
    return source


# ---- plain text -------------------------------------------------------------------------------


def _read_text(name: str, stream: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
    if reading.documents == "row":
        yield from _read_rows(name, stream, reading, tally)
        return
    yield from (row["text"] for _, row in _text_rows(name, stream, reading, tally))


def _text_rows(
    name: str, stream: BinaryIO, reading: Reading, tally: Tally, bad: Bad | None = None
) -> Iterator[Row]:
    block: list[str] = []
    size, begin = 0, 1
    for number, line in _lines(name, stream, reading, tally, cut=True, bad=bad):
        if not _is_sound(line):
            continue
        blank = not line or line.isspace()
        full = size + len(line) > LONGEST
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


def _read_rows(name: str, stream: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
    last = 0
    for number, line in _lines(name, stream, reading, tally, cut=True):
        if number > last:
            yield line.rstrip("\r\n")
        else:  # the rest of a line that is too long
            tally["long documents cut"] += 1
        last = number


def _lines(
    name: str, stream: BinaryIO, reading: Reading, tally: Tally, cut: bool, bad: Bad | None = None
) -> Iterator[tuple[int, str]]:
    """Numbered lines as text; invalid bytes are replaced and counted, or named if strict.

    With `bad` they are told and stay in the line, for it to be passed over with the whole row.
    """
    offset, number = 0, 1
    for raw in _raw_lines(stream) if cut else iter(partial(stream.readline, LONGEST_ROW), b""):
        if not cut and len(raw) == LONGEST_ROW and not raw.endswith(b"\n"):
            raise InputError(f"{name} line {number}: a row longer than {LONGEST_ROW >> 20} MiB.")
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


def _is_sound(text: str) -> bool:
    """Whether nothing of a text was left undecoded."""
    return text.isascii() or not INVALID.search(text)


def _raw_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines, or pieces of lines of at most LONGEST bytes that end behind a space or a character."""
    rest = b""
    while raw := stream.readline(LONGEST - len(rest)):
        raw, rest = rest + raw, b""
        if len(raw) == LONGEST and not raw.endswith(b"\n"):
            end = raw.rfind(b" ", LONGEST // 2) + 1
            if not end:
                end = len(raw) - 1
                while end > LONGEST - 4 and raw[end] & 0xC0 == 0x80:
                    end -= 1
            raw, rest = raw[:end], raw[end:]
        yield raw
    if rest:
        yield rest


def _parts(text: str, tally: Tally) -> Iterator[str]:
    """A long text in parts of at most LONGEST characters, cut at spaces where there are any."""
    tally["long documents cut"] += 1
    while len(text) > LONGEST:
        end = text.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST
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
    name: str, stream: BinaryIO, reading: Reading, tally: Tally, bad: Bad | None = None
) -> Iterator[Row]:
    for number, line in _lines(name, stream, reading, tally, cut=False, bad=bad):
        if not line.strip() or not _is_sound(line):
            continue
        try:
            row = json_object(line, f"{name} line {number}")
        except InputError as error:
            if bad is None:
                raise
            bad(error)
        else:
            yield number, row


def _read_json_lines(name: str, stream: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
    rows = ((f"{name} line {n}", row) for n, row in _json_rows(name, stream, reading, tally))
    return _texts_of(rows, reading, tally)


def _texts_of(
    rows: Iterator[tuple[str, dict[str, Any]]], reading: Reading, tally: Tally
) -> Iterator[str]:
    """The texts of rows with their places; all have them in the column that the first has."""
    first = True
    for where, row in rows:
        found = text_column(where, reading.column, row, first)
        if first:
            reading, first = replace(reading, column=found), False
        yield text_field(where, row[reading.column], reading, tally)


def _lines_as(make: Callable[[str, Iterable[str], int, Bad | None], Table]) -> TableReader:
    """A table whose rows stand on lines; a row with bytes that are not UTF-8 was told already."""

    def read(name: str, stream: BinaryIO, reading: Reading, tally: Tally, bad: Bad | None) -> Table:
        lines = (line for _, line in _lines(name, stream, reading, tally, cut=False, bad=bad))
        return (row for row in make(name, lines, LONGEST_ROW, bad) if all(map(_is_sound, row[1])))

    return read


def _column_of(table: TableReader) -> Reader:
    """A reader of the one column that holds the text."""

    def read(name: str, stream: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
        rows = table(name, stream, reading, tally, None)
        line, header = next(rows, (1, [reading.column]))
        place = header.index(text_column(f"{name} line {line}", reading.column, header))
        return (row[place] for _, row in rows)

    return read


def _read_parquet(name: str, stream: BinaryIO, reading: Reading, tally: Tally) -> Iterator[str]:
    rows = parquet_table(name, stream, reading.column)
    next(rows)
    for number, (value,) in rows:
        yield text_field(f"{name} row {number}", value, reading, tally)


def _rows_of(table: TableReader) -> RowReader:
    return lambda name, *how: named_fields(name, table(name, *how))


def _read_dataset(name: str, reading: Reading, tally: Tally) -> Iterator[str]:
    rows = ((f"datasets:{name} row {n}", row) for n, row in enumerate(dataset_rows(name), 1))
    return _texts_of(rows, reading, tally)


def text_field(where: str, value: Any, reading: Reading, tally: Tally) -> str:
    """A field's text; JSON can also hold half characters (surrogates), which no file can."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{where}: '{reading.column}' is not text but {type(value).__name__} ({value!r:.40})."
        )
    if not value.isascii() and INVALID.search(value):
        if reading.strict:
            raise InputError(f"{where}: '{reading.column}' holds half a character (a surrogate).")
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
