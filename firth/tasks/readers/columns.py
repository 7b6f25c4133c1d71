"""Rows of task files, and the roles of their columns.

A column is found by its standard name, or else by another common name of its role, in any case. If
several common names but no standard one are present, the user must choose.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

from firth.data.cleaning import is_invisible
from firth.data.input_files import InputFile, single_input_file
from firth.data.memory import Source, is_in_memory
from firth.data.readers import (
    Bad,
    Convention,
    ReadOptions,
    Row,
    check_format,
    is_valid,
    reporting_errors,
    text_field,
)
from firth.data.tables import TEXTS, separator_advice
from firth.utils.errors import InputError
from firth.utils.streams import interleave_errors

Example = TypeVar("Example")
LabelUse = Literal["required", "optional", "ignored"]
Names = tuple[str, ...]  # of columns that belong together
Columns = Mapping[str, str]  # role of a column -> its name in the file


@dataclass(frozen=True)
class TaskFile:
    """A file of examples, and how to read it: by default for training or evaluation."""

    path: Source
    format: str | None = None  # of standard input and files with an unknown extension
    columns: Columns = field(default_factory=dict)  # that the user named
    labels: LabelUse = "required"  # also tags, answers and targets
    allow_empty: bool = False  # texts may be empty
    bad: Bad | None = None  # gets the errors of single rows, after which reading continues

    def table_rows(self) -> Iterator[Row]:
        """Yield the rows of a table."""
        return table_rows(find_source(self.path, self.format), self.bad)

    def require_examples(self, found: Any) -> None:
        """Raise InputError if nothing was found, unless the file may be empty."""
        if not found and not self.allow_empty:
            raise InputError(f"{self.path} has no examples.")


@dataclass(frozen=True, kw_only=True)
class ColumnRole:
    """A role of one or two columns, with their possible names: the standard ones come first."""

    options: Names  # roles for --column ROLE=NAME, if the user may name the columns
    names: tuple[Names, ...]

    @property
    def advice(self) -> str:
        """What to do if the columns are not found."""
        given = (f"{option}=NAME" if option else "NAME" for option in self.options)
        named = " ".join(f"--column {one}" for one in given)
        return f"rename one, or choose with {named}." if named else "rename one."


def _role(options: str, names: str) -> ColumnRole:
    """Make a role; names of columns that belong together are joined by `+`."""
    alternatives = tuple(tuple(name.split("+")) for name in names.split(" | "))
    return ColumnRole(options=tuple(options.split()), names=alternatives)


TEXT = _role("text", " | ".join(TEXTS))
ONLY_TEXT = ColumnRole(options=("",), names=TEXT.names)  # where --column takes a name alone
PROMPT_TEXT = ColumnRole(options=("",), names=(("text",), ("prompt",), *TEXT.names[1:]))
PAIR = _role(
    "text_a text_b",
    "text_a+text_b | sentence1+sentence2 | premise+hypothesis | question1+question2 | text1+text2"
    " | question+sentence | question+context | question+passage | query+document"
    " | sentence_a+sentence_b | #1 string+#2 string",
)
TEXT_OR_PAIR = ColumnRole(
    options=("text",), names=(TEXT.names[0], PAIR.names[0], *TEXT.names[1:], *PAIR.names[1:])
)
LABEL = _role(
    "label",
    "label | labels | class | category | gold_label | score | sentiment | target | rating"
    " | similarity | is_duplicate | quality",
)
PROMPT = _role(
    "text",
    "text | question | context | ctx | premise | sentence | passage | article | goal | startphrase",
)
CHOICES = _role("choices", "choices | options | endings")
ANSWER = _role("", "answer | answers")  # of a blank
RIGHT = _role("label", "label | answer | answerkey | correct")
PASSAGE = _role(
    "text", "text | messages | turns | conversations | content | document | body | article"
)
SOURCE_AND_TARGET = _role(
    "source target",
    "source+target | src+tgt | input+output | article+highlights | document+summary | text+summary"
    " | prompt+completion | instruction+response",
)
SOURCE = _role("source", "source | src | input | article | document | text | prompt | instruction")
GOOD_AND_BAD = _role("", "sentence_good+sentence_bad | good+bad | grammatical+ungrammatical")
CATEGORY = ("UID", "category", "phenomenon", "linguistics_term", "field")  # the first that is there
WORDS = _role("words", "words | tokens")
TAGS = _role("tags", "tags | ner_tags | labels | pos_tags | upos")


# ---- rows ---------------------------------------------------------------------------------------


def find_source(path: Source, format: str | None = None, usual: str | None = None) -> InputFile:
    """Find the file, standard input (`-`) or Hugging Face dataset that a path names.

    `format` is for standard input and files with an unknown extension; the default is `usual`.
    Without a format, standard input may also be JSONL: see `opened`.
    """
    check_format(format)
    source = single_input_file(path, ReadOptions(format=format or usual))
    return replace(source, guess_format=str(path) == "-" and format is None)


@contextmanager
def opened(source: InputFile) -> Iterator[tuple[InputFile, BinaryIO]]:
    """Open a file; standard input that begins with a JSON object is read as JSONL."""
    with source.open() as raw:
        yield source.detect_format(raw), raw


def task_rows(
    source: InputFile, documents: Convention = "block", bad: Bad | None = None
) -> Iterator[Row]:
    """Yield the rows of a file with their lines; bytes that are not UTF-8 are an error."""
    with opened(source) as (source, raw):
        yield from rows_in(source, raw, documents, bad)


def table_rows(source: InputFile, bad: Bad | None = None) -> Iterator[Row]:
    """Yield the rows of a table; in plain text every line is a row, also an empty one."""
    with opened(source) as (source, raw):
        if source.format in ("txt", "md"):
            yield from ((number, {"text": line}) for number, line in lines_in(source, raw, bad))
        else:
            yield from rows_in(source, raw, bad=bad)


def rows_in(
    source: InputFile, raw: BinaryIO, documents: Convention = "block", bad: Bad | None = None
) -> Iterator[Row]:
    """Yield the rows of an open file."""
    return source.rows(raw, ReadOptions(strict=True, documents=documents), Counter(), bad)


def texts_in(
    source: InputFile, role: ColumnRole, column: str | None, bad: Bad | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the text of each line or row, with its place in the file."""
    for line, row in table_rows(source, bad):
        with reporting_errors(bad):
            name = need_columns(role, row, header_place(source.name, line), column)[0]
            where = place(source.name, line)
            yield where, row_text(row, name, where)


def lines_in(source: InputFile, raw: BinaryIO, bad: Bad | None = None) -> Iterator[tuple[int, str]]:
    """Yield the lines of an open file, numbered from 1, without newlines."""
    return ((number, line) for number, line in source.lines(raw, bad) if is_valid(line))


UNITS = {".parquet": "row", ".json": "question"}  # what is counted instead of lines


def place(path: Source, line: int) -> str:
    """Describe the place of an example for error messages.

    >>> place("dev.tsv", 7), place("dev.parquet.gz", 7)
    ('dev.tsv line 7', 'dev.parquet.gz row 7')
    """
    return f"{path} {_unit(str(path).lower())} {line}"


def header_place(path: Source, line: int) -> str:
    """The place of the column names: the header line, or the first row."""
    above = {".csv", ".tsv"} & set(Path(str(path).lower()).suffixes[-2:])
    return place(path, 1 if above else line)


@lru_cache
def _unit(path: str) -> str:
    units = [UNITS[ending] for ending in Path(path).suffixes[-2:] if ending in UNITS]
    table = path.startswith("datasets:") or is_in_memory(path)
    return "row" if table else (*units, "line")[0]


def good_examples(
    read: Callable[[TaskFile], Iterable[Example]], file: TaskFile
) -> Iterator[Example]:
    """Yield the examples of a file; its `bad` gets the errors of single rows, which are skipped."""
    if file.bad is None:
        yield from read(file)
        return
    for row in interleave_errors(lambda report: iter(read(replace(file, bad=report)))):
        if isinstance(row, InputError):
            file.bad(row)
        else:
            yield row


# ---- columns ------------------------------------------------------------------------------------


def find_columns(role: ColumnRole, columns: Iterable[str], where: str) -> Names | None:
    """Find the columns of a role; None if there are none. Several candidates are an error.

    A pair of columns has precedence over one of them.

    >>> find_columns(LABEL, ["Text", "Label"], "a.csv line 1")
    ('Label',)
    >>> find_columns(PAIR, ["idx", "premise", "hypothesis"], "a.csv line 1")
    ('premise', 'hypothesis')
    >>> find_columns(TEXT, ["tweet", "review"], "a.csv")
    Traceback (most recent call last):
    firth.utils.errors.InputError: a.csv has 'tweet' and 'review'; rename one, or choose with \
--column text=NAME.
    """
    there = {column.lower(): column for column in columns}
    there |= {column: column for column in columns}  # exact case has precedence
    found = [
        tuple(there[name] for name in names)
        for names in role.names
        if all(name in there for name in names)
    ]
    standard = found and tuple(map(str.lower, found[0])) == role.names[0]
    found = [names for names in found if not any(set(names) < set(other) for other in found)]
    if len(found) > 1 and not standard:
        first, second = (" + ".join(names) for names in found[:2])
        raise InputError(f"{where} has '{first}' and '{second}'; {role.advice}")
    return found[0] if found else None


def need_columns(
    role: ColumnRole, columns: Iterable[str], where: str, named: str | Names | None = None
) -> Names:
    """Find the columns of a role, or those that the user named; raise if they are missing."""
    columns = list(columns)
    chosen = (named,) if isinstance(named, str) else named
    found = chosen or find_columns(role, columns, where)
    missing = [name for name in found or role.names[0] if not found or name not in columns]
    if missing:
        wanted = " and ".join(f"'{name}'" for name in missing)
        there = ", ".join(repr(name[:30]) for name in columns[:12]) or "none"
        more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
        todo = separator_advice(columns) or role.advice
        raise InputError(f"{where} has no column {wanted} (it has {there}{more}); {todo}")
    assert found
    return found


def find_label(role: ColumnRole, columns: Iterable[str], where: str, file: TaskFile) -> str | None:
    """Find the column of labels; None if they are ignored, or optional and missing or ambiguous."""
    named = file.columns.get(role.options[0])
    if file.labels == "ignored":
        return None
    if file.labels == "required" or named:
        return need_columns(role, columns, where, named)[0]
    try:
        found = find_columns(role, columns, where)
    except InputError:
        return None
    return found[0] if found else None


# ---- fields -------------------------------------------------------------------------------------


def row_field(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Get the value of a column; rows of JSON may lack it."""
    if column not in row:
        raise InputError(f"{where} has no field '{column}', which earlier rows have.")
    return row[column]


def row_text(row: Mapping[str, Any], column: str, where: str, *, allow_empty: bool = True) -> str:
    """Get the text of a column."""
    text = _valid_text(row_field(row, column, where), where, column)
    if not allow_empty and is_invisible(text):
        raise empty_field(where, column)
    return text


def _valid_text(value: Any, where: str, column: str) -> str:
    if isinstance(value, str) and value.isascii():
        return value
    return text_field(where, value, ReadOptions(column=column, strict=True), Counter())


def empty_field(where: str, column: str | None) -> InputError:
    """The error for a field that must not be empty."""
    return InputError(f"{where}: '{column}' is empty; fill it in or remove the row.")


def label_text(value: Any, where: str, column: str) -> str | None:
    """Convert a label of any type to text; None if it is missing.

    >>> [label_text(value, "a.jsonl line 1", "label") for value in (" good ", 1, True, "", None)]
    ['good', '1', 'true', None, None]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value) if value == value else None  # NaN: missing
    return _valid_text(value, where, column).strip() or None


def plain_label(label: str) -> str:
    """Return a label as other tools write it: True of a CSV file of pandas is true, 1.0 is 1.

    >>> [plain_label(label) for label in ("True", "FALSE", "1.0", "1.5", "good")]
    ['true', 'false', '1', '1.5', 'good']
    """
    if label.lower() in ("true", "false"):
        return label.lower()
    return label.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", label) else label


def json_list(value: Any, where: str, column: str) -> Any:
    """Parse a list in a table's field from JSON; return other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: '{column}' is not a JSON list ({value!r:.40}).") from error


def text_list(value: Any, where: str, column: str) -> tuple[str, ...]:
    """Convert a list of values to texts."""
    if not isinstance(value, list):
        raise InputError(f"{where}: '{column}' is not a list but {type(value).__name__}.")
    return tuple(
        _valid_text(item, where, column)
        if isinstance(item, str)
        else label_text(item, where, column) or ""
        for item in value
    )


def label_list(value: Any, where: str, column: str) -> tuple[str, ...]:
    """Convert a list to labels; a missing one is an error."""
    labels = tuple(label.strip() for label in text_list(value, where, column))
    if not all(labels):
        raise InputError(f"{where}: one of '{column}' is empty.")
    return labels
