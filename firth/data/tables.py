"""Table readers: each yields the header, then the rows, with their line or row numbers."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

from firth.utils.errors import InputError, UsageError

# Names of text columns: the default, then other common ones.
TEXTS = (
    "text sentence tweet review comment content document body message utterance question post"
).split()
# Field separators, and what to do if a file has another one than its extension says.
SEPARATORS = {
    "\t": "tabs: rename it to .tsv",
    ";": "semicolons: convert it to commas, or to tabs as a .tsv file",
    ",": "commas: rename it to .csv",
}

Table = Iterator[tuple[int, Sequence[Any]]]
Bad = Callable[[InputError], None] | None  # called with each invalid row; None: raise the error


def csv_table(name: str, lines: Iterable[str], longest: int, bad: Bad = None) -> Table:
    """Read comma-separated values; fields have at most `longest` characters.

    >>> list(csv_table("a.csv", ["text,label\\n", '"on two\\n', 'lines",x\\n', "y,z\\n"], 99))
    [(1, ['text', 'label']), (2, ['on two\\nlines', 'x']), (4, ['y', 'z'])]
    """
    advice = "put quotation marks around a field that holds commas"
    return _numbered(name, csv.reader(lines, strict=True), longest, advice, bad)


def tsv_table(name: str, lines: Iterable[str], longest: int, bad: Bad = None) -> Table:
    """Read tab-separated values; quotation marks are text, as in GLUE and most corpora.

    >>> list(tsv_table("a.tsv", ["text\\tlabel\\n", '" No " , he said\\t0\\n'], 99))
    [(1, ['text', 'label']), (2, ['" No " , he said', '0'])]
    """
    advice = "a field of a TSV file holds no tab and no line break (one of a CSV file may)"
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return _numbered(name, rows, longest, advice, bad)


def _numbered(name: str, rows: Any, longest: int, advice: str, bad: Bad) -> Table:
    csv.field_size_limit(longest)
    header: Sequence[str] = ()
    while True:
        begin = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            complaint = InputError(f"{name} line {rows.line_num}: {error}.")
            if bad is None or rows.line_num > begin:  # an unclosed quotation mark hides other rows
                raise complaint from error
            bad(complaint)
            continue
        if row is None:
            return
        header = header or row
        if row and len(row) != len(header):
            counts = f"{len(row)} fields where the header has {len(header)}"
            todo = separator_advice(header) or f"{advice}."
            complaint = InputError(f"{name} line {rows.line_num}: {counts}; {todo}")
            if bad is None:
                raise complaint
            bad(complaint)
        elif row:
            yield begin, row


def separator_advice(header: Sequence[str]) -> str:
    """Return advice if the header seems to have another separator than the file extension.

    >>> separator_advice(["id,text"]), separator_advice(["Well, a text"])
    ('the file seems to be separated by commas: rename it to .csv.', '')
    """
    only = header[0] if len(header) == 1 else ""
    seen = [way for mark, way in SEPARATORS.items() if re.search(rf"\S{mark}\S", only)]
    return f"the file seems to be separated by {seen[0]}." if seen else ""


def json_object(line: str, where: str) -> dict[str, Any]:
    """Parse one line of JSONL."""
    try:
        row = json.loads(line.rstrip("\r\n"))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        reason = re.sub("( starting)? at$", "", reason)  # the position, which is not shown
        raise InputError(f"{where} is not JSON: {reason}.") from error
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object but {type(row).__name__}.")
    return row


def begins_json(head: bytes) -> bool:
    """Return whether the first line is a JSON object, or the start of one if it is incomplete.

    >>> [begins_json(head) for head in (b'{"text": "Good."}\\n', b"{sic} Good.\\n", b'{ "te')]
    [True, False, True]
    """
    line, end, _ = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return not end and bool(re.match(rb'\{\s*"', line))


def text_column(where: str, requested: str, columns: Iterable[str], usual: bool = True) -> str:
    """Return the text column; for the default name, another common name is accepted if `usual`.

    >>> text_column("a.csv line 1", "text", ["id", "Review"])
    'Review'
    """
    names = list(columns)
    if requested in names:
        return requested
    there = {name.lower(): name for name in names}
    searches = requested == TEXTS[0] and usual
    found = [there[name] for name in TEXTS if name in there] if searches else []
    if len(found) == 1 or (TEXTS[0] in there and found):
        return found[0]
    todo = "choose one with --column."
    if found:
        has = f"has '{found[0]}' and '{found[1]}'"
    else:
        todo = separator_advice(names) or todo
        shown = ", ".join(f"'{name}'" for name in names) or "none"
        has = f"has no field '{requested}' (it has {shown})"
    raise InputError(f"{where} {has}; {todo}")


def parquet_table(name: str, stream: BinaryIO, column: str | None = None) -> Table:
    """Read the rows of a Parquet file, numbered from 1: one text column, or all columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as copy:
        if not isinstance(stream, io.BufferedReader) or not stream.seekable():
            shutil.copyfileobj(stream, copy, 1 << 20)  # Parquet files are read from their end
            stream = cast(BinaryIO, copy)
        try:
            file = pq.ParquetFile(stream)
            names = file.schema_arrow.names
            columns = names if column is None else [text_column(name, column, names)]
            yield 0, columns
            number = 0
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for values in zip(*(part.to_pylist() for part in batch.columns), strict=True):
                    number += 1
                    yield number, values
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise InputError(f"{name} is not a Parquet file that can be read: {error}.") from error


def named_fields(name: str, table: Table) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a table as dicts.

    >>> list(named_fields("a.csv", csv_table("a.csv", ["text,label\\n", "x,y\\n"], 99)))
    [(2, {'text': 'x', 'label': 'y'})]
    """
    _, header = next(table, (0, []))
    names = [column.strip() for column in header]
    if twice := [column for column, count in Counter(names).items() if column and count > 1]:
        raise InputError(f"{name}: two columns are called {twice[0][:30]!r}; rename one.")
    for number, row in table:
        yield number, dict(zip(names, row, strict=True))


def dataset_rows(name: str) -> Iterator[dict[str, Any]]:
    """Stream the rows of a Hugging Face dataset: NAME, NAME:SPLIT or NAME:CONFIG:SPLIT."""
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            f"datasets:{name} needs the `datasets` library: pip install 'firth[datasets]'."
        ) from error
    path, *rest = name.split(":")
    split, config = (rest[-1] if rest else "train"), (rest[0] if len(rest) > 1 else None)
    try:
        return iter(datasets.load_dataset(path, config, split=split, streaming=True))
    except Exception as error:  # any error of the hub, the network or the dataset
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise InputError(f"The dataset {name} cannot be loaded: {reason}.") from error
