"""Readers of text files in all formats, streaming in bounded memory.

A reader takes an open stream and yields its texts or rows. A row of more than MAX_ROW_BYTES is an
error; a document of more than MAX_CHARS is split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Literal

from firth.data.cleaning import is_invisible
from firth.data.conll import ConllSentence, conll_documents, conll_sentences
from firth.data.tables import (
    Table,
    csv_table,
    json_object,
    named_fields,
    parquet_table,
    text_column,
    tsv_table,
)
from firth.utils.errors import InputError, UsageError
from firth.utils.surrogates import SURROGATE

MAX_CHARS = 2 << 20
MAX_ROW_BYTES = 16 << 20

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
    # Raise an error for a bad row instead of skipping it, and for bytes that are not UTF-8 instead
    # of replacing them.
    strict: bool = False

    def updated(self, **options: Any) -> ReadOptions:
        """Return these options with those of a function that are given.

        >>> ReadOptions(column="review").updated(column=None, strict=True).column
        'review'
        """
        return replace(self, **{name: value for name, value in options.items() if value})


@dataclass(frozen=True)
class OpenFile:
    """An opened file and the options for reading it."""

    name: str
    stream: BinaryIO
    reading: ReadOptions
    tally: Tally
    bad: Bad | None = None


class BlankLine(InputError):
    """A blank line of a text file."""


Reader = Callable[[OpenFile], Iterator[str]]
RowReader = Callable[[OpenFile], Iterator[Row]]
TableReader = Callable[[OpenFile], Table]


# ---- plain text -------------------------------------------------------------------------------


def _read_text(file: OpenFile) -> Iterator[str]:
    if file.reading.documents == "row":
        yield from _text_lines(file)
    else:
        yield from (row["text"] for _, row in _text_rows(file))


def _text_rows(file: OpenFile) -> Iterator[Row]:
    block: list[str] = []
    size, begin = 0, 1
    documents = file.reading.documents
    for number, line in read_lines(file, cut=True):
        if not is_valid(line):
            continue
        blank = not line or line.isspace()
        full = size + len(line) > MAX_CHARS
        ends = documents == "line" or (blank and documents == "block")
        if block and (ends or full):
            file.tally["long documents cut"] += full
            yield begin, {"text": "".join(block)}
            block, size = [], 0
        if not blank or documents == "file":
            begin = begin if block else number
            block.append(line)
            size += len(line)
    if block:
        yield begin, {"text": "".join(block)}


def _text_lines(file: OpenFile) -> Iterator[str]:
    last = 0
    for number, line in read_lines(file, cut=True):
        if number > last and is_valid(line):
            where = f"{file.name} line {number}"
            with reporting_errors(file.bad):
                if file.bad is not None and not line.strip():
                    raise BlankLine(f"{where} is empty.")
                yield _checked(line.rstrip("\r\n"), where, file.bad)
        elif number == last:  # the rest of a line that is too long
            file.tally["long documents cut"] += 1
        last = number


def read_lines(file: OpenFile, cut: bool = False) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; invalid bytes are replaced and counted, or an error if strict.

    With `file.bad`, they are reported and stay in the line, so that the whole row can be skipped.
    """
    offset, number = 0, 1
    whole_lines = iter(partial(file.stream.readline, MAX_ROW_BYTES), b"")
    for raw in _raw_lines(file.stream) if cut else whole_lines:
        if not cut and len(raw) == MAX_ROW_BYTES and not raw.endswith(b"\n"):
            limit = f"{MAX_ROW_BYTES >> 20} MiB"
            raise InputError(f"{file.name} line {number} is longer than {limit}.")
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            line, replaced = raw.decode("utf-8", "surrogateescape"), 0
            if file.reading.strict:
                where = f"{file.name} line {number}: byte {offset + error.start} of the file"
                _report(file, InputError(f"{where} is not UTF-8; convert it with iconv."))
            else:
                line, replaced = SURROGATE.subn("\ufffd", line)
            file.tally["invalid bytes replaced"] += replaced
        yield number, line.removeprefix("\ufeff") if offset == 0 else line
        offset += len(raw)
        if raw.endswith(b"\n"):
            number += 1


def _report(file: OpenFile, error: InputError) -> None:
    """Report an invalid row, or raise the error."""
    if file.bad is None:
        raise error
    file.bad(error)


@contextmanager
def reporting_errors(bad: Bad | None) -> Iterator[None]:
    """Pass an InputError to `bad` instead of raising it, unless `bad` is None.

    >>> with reporting_errors(print):
    ...     raise InputError("a.tsv line 7: 'text' is empty.")
    a.tsv line 7: 'text' is empty.
    """
    try:
        yield
    except InputError as error:
        if bad is None:
            raise
        bad(error)


def _checked(text: str, where: str, bad: Bad | None) -> str:
    """Return a text; where bad rows are reported, one without visible characters is an error."""
    if bad is not None and is_invisible(text):
        raise InputError(f"{where} is empty.")
    return text


def is_valid(text: str) -> bool:
    """Return whether a text has no undecoded bytes."""
    return text.isascii() or not SURROGATE.search(text)


def check_utf8(texts: Iterable[str], where: str) -> None:
    """Raise an error if one of the texts has undecoded bytes."""
    if not all(map(is_valid, texts)):
        raise InputError(f"{where} is not UTF-8; convert the file with iconv.")


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


# ---- CoNLL ------------------------------------------------------------------------------------


def _sentences(file: OpenFile, conllu: bool) -> Iterator[ConllSentence]:
    # Invalid bytes make the whole sentence a bad row: one without the word would be wrong.
    lines = read_lines(file if file.bad is None else replace(file, bad=lambda error: None))
    for sentence in conll_sentences(lines, conllu):
        with reporting_errors(file.bad):
            check_utf8([sentence.text], f"{file.name} line {sentence.line}: the sentence")
            file.tally["sentences of CoNLL files joined from words"] += 1
            yield sentence


def _conll_reader(conllu: bool) -> Reader:
    return lambda file: conll_documents(_sentences(file, conllu), file.reading.documents, MAX_CHARS)


def _conll_rows(conllu: bool) -> RowReader:
    return lambda file: ((one.line, {"text": one.text}) for one in _sentences(file, conllu))


# ---- rows -------------------------------------------------------------------------------------


def _json_rows(file: OpenFile) -> Iterator[Row]:
    for number, line in read_lines(file):
        if not line.strip() or not is_valid(line):
            continue
        try:
            row = json_object(line, f"{file.name} line {number}")
        except InputError as error:
            _report(file, error)
        else:
            yield number, row


def _read_json_lines(file: OpenFile) -> Iterator[str]:
    rows = ((f"{file.name} line {number}", row) for number, row in _json_rows(file))
    return _text_of_rows(rows, file.reading, file.tally, file.bad)


def read_table(
    name: str,
    rows: Iterable[Row],
    reading: ReadOptions,
    tally: Tally,
    bad: Bad | None = None,
) -> Iterator[str]:
    """Yield the texts of a table that is not in a file."""
    numbered = ((f"{name} row {number}", row) for number, row in rows)
    return _text_of_rows(numbered, reading, tally, bad)


def _text_of_rows(
    rows: Iterator[tuple[str, dict[str, Any]]],
    reading: ReadOptions,
    tally: Tally,
    bad: Bad | None,
) -> Iterator[str]:
    """Yield the texts of rows, from the column that the first good row has."""
    found = ""
    for where, row in rows:
        with reporting_errors(bad):
            column = text_column(where, found or reading.column, row, usual=not found)
            if not found:
                found, reading = column, replace(reading, column=column)
            text = text_field(where, row[column], reading, tally)
            yield _checked(text, f"{where}: '{column}'", bad)


def _table_of_lines(make: Callable[[str, Iterable[str], int, Bad | None], Table]) -> TableReader:
    """Return a reader of line-based tables; rows with reported invalid bytes are skipped."""

    def read(file: OpenFile) -> Table:
        table = make(file.name, (line for _, line in read_lines(file)), MAX_ROW_BYTES, file.bad)
        return (row for row in table if all(map(is_valid, row[1])))

    return read


def _text_of_table(table: TableReader) -> Reader:
    """Return a reader of the text column of a table."""

    def read(file: OpenFile) -> Iterator[str]:
        rows = table(file)
        line, header = next(rows, (1, [file.reading.column]))
        column = text_column(f"{file.name} line {line}", file.reading.column, header)
        index = header.index(column)
        for line, row in rows:
            with reporting_errors(file.bad):
                yield _checked(row[index], f"{file.name} line {line}: '{column}'", file.bad)

    return read


def _read_parquet(file: OpenFile) -> Iterator[str]:
    rows = parquet_table(file.name, file.stream, file.reading.column)
    next(rows)
    for number, (value,) in rows:
        where = f"{file.name} row {number}"
        with reporting_errors(file.bad):
            text = text_field(where, value, file.reading, file.tally)
            yield _checked(text, f"{where}: '{file.reading.column}'", file.bad)


def _rows_of_table(table: TableReader) -> RowReader:
    return lambda file: named_fields(file.name, table(file))


def text_field(where: str, value: Any, reading: ReadOptions, tally: Tally) -> str:
    """Return the text of a field; replace lone surrogates, which JSON can contain."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{where}: '{reading.column}' is not text but {type(value).__name__} ({value!r:.40})."
        )
    if not value.isascii() and SURROGATE.search(value):
        if reading.strict:
            raise InputError(f"{where}: '{reading.column}' contains a lone surrogate.")
        repaired, replaced = SURROGATE.subn("\ufffd", value)
        tally["invalid bytes replaced"] += replaced
        return repaired
    return value


_CSV, _TSV = _table_of_lines(csv_table), _table_of_lines(tsv_table)

FORMATS: dict[str, Reader] = {
    "txt": _read_text,
    "md": _read_text,
    "jsonl": _read_json_lines,
    "csv": _text_of_table(_CSV),
    "tsv": _text_of_table(_TSV),
    "parquet": _read_parquet,
    "conll": _conll_reader(conllu=False),
    "conllu": _conll_reader(conllu=True),
}

ROWS: dict[str, RowReader] = {
    "txt": _text_rows,
    "md": _text_rows,
    "jsonl": _json_rows,
    "csv": _rows_of_table(_CSV),
    "tsv": _rows_of_table(_TSV),
    "parquet": _rows_of_table(lambda file: parquet_table(file.name, file.stream)),
    "conll": _conll_rows(conllu=False),
    "conllu": _conll_rows(conllu=True),
}


def check_format(format: str | None) -> None:
    """Raise a usage error for an unknown format; json is that of questions."""
    if format and format not in (*FORMATS, "json"):
        raise UsageError(f"--format {format} is not known; choose one of {', '.join(FORMATS)}.")
