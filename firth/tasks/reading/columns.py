"""Rows of a task file, and which of its columns holds what.

A column is found by its standard name, or else by another usual name for the same thing, in
capitals or not. Where two usual names are there and no standard one, nobody guesses: the person
says which.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from firth.errors import InputError
from firth.text.readers import Bad, Convention, Reading, Row, Source, find_sources, text_field
from firth.text.tables import TEXTS, other_divider

OnEmpty = Literal["refuse", "keep"]  # what becomes of a text with nothing in it
Names = tuple[str, ...]  # of columns that belong together


@dataclass(frozen=True, kw_only=True)
class Role:
    """Something that columns hold, and what they are called: the standard names come first."""

    options: Names  # how a person names the columns, if that is possible
    names: tuple[Names, ...]

    @property
    def advice(self) -> str:
        """What to do if the columns are not found."""
        given = (f"{option}=NAME" if option else "NAME" for option in self.options)
        named = " ".join(f"--column {one}" for one in given)
        return f"rename one, or say which to read: {named}." if named else "rename one."


def _role(options: str, names: str) -> Role:
    """A role from a table: columns that belong together are joined by `+`."""
    alternatives = tuple(tuple(name.split("+")) for name in names.split(" | "))
    return Role(options=tuple(options.split()), names=alternatives)


TEXT = _role("text", " | ".join(TEXTS))
ONLY_TEXT = Role(options=("",), names=TEXT.names)  # where --column takes a name alone
TO_GO_ON = Role(options=("",), names=(("text",), ("prompt",), *TEXT.names[1:]))
PAIR = _role(
    "text_a text_b",
    "text_a+text_b | sentence1+sentence2 | premise+hypothesis | question1+question2 | text1+text2"
    " | question+sentence | question+context | question+passage | query+document"
    " | sentence_a+sentence_b | #1 string+#2 string",
)
TEXT_OR_PAIR = Role(
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


def find_source(path: str | Path, format: str | None = None, usual: str | None = None) -> Source:
    """The one file, standard input (`-`) or data set that a path names.

    `format` says what standard input, or a file whose ending says nothing, holds; it is `usual`
    where nobody says. Standard input may be JSONL then as well: see `opened`.
    """
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a file in it.")
    sources, _ = find_sources([path], Reading(format=format or usual))
    if len(sources) > 1:
        raise InputError(f"{path} stands for {len(sources)} files; name one.")
    return replace(sources[0], unsaid=str(path) == "-" and format is None)


@contextmanager
def opened(source: Source) -> Iterator[tuple[Source, BinaryIO]]:
    """A file, with its bytes; standard input that begins with a JSON object is JSONL."""
    with source.open() as raw:
        yield source.settled(raw), raw


def task_rows(
    source: Source, documents: Convention = "block", bad: Bad | None = None
) -> Iterator[Row]:
    """The rows of a file with the places they stand at; bytes that are not UTF-8 are refused."""
    with opened(source) as (source, raw):
        yield from rows_in(source, raw, documents, bad)


def table_rows(source: Source, bad: Bad | None = None) -> Iterator[Row]:
    """The rows of a table; of plain text every line is one, also an empty one."""
    with opened(source) as (source, raw):
        if source.format in ("txt", "md"):
            yield from ((number, {"text": line}) for number, line in lines_in(source, raw, bad))
        else:
            yield from rows_in(source, raw, bad=bad)


def rows_in(
    source: Source, raw: BinaryIO, documents: Convention = "block", bad: Bad | None = None
) -> Iterator[Row]:
    """The rows of a file that is open."""
    return source.rows(raw, Reading(strict=True, documents=documents), Counter(), bad)


def texts_in(
    source: Source, role: Role, column: str | None, bad: Bad | None = None
) -> Iterator[tuple[str, str]]:
    """The texts of a file, one of each line or of each row of a table, and where each stands."""
    for line, row in table_rows(source, bad):
        with spared(bad):
            name = need_columns(role, row, header_place(source.name, line), column)[0]
            where = place(source.name, line)
            yield where, row_text(row, name, where, "keep")


def lines_in(source: Source, raw: BinaryIO, bad: Bad | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a file that is open, without their ends, numbered from 1."""
    for number, line in source.lines(raw, Reading(strict=True), Counter(), bad):
        yield number, line.rstrip("\r\n")


@contextmanager
def spared(bad: Bad | None) -> Iterator[None]:
    """Tell of a bad row and go on behind it; where nobody is told, that is the end.

    >>> with spared(print):
    ...     raise InputError("a.tsv line 7: 'text' is empty.")
    a.tsv line 7: 'text' is empty.
    """
    try:
        yield
    except InputError as error:
        if bad is None:
            raise
        bad(error)


UNITS = {".parquet": "row", ".json": "question"}  # what is counted in files without lines


def place(path: str | Path, line: int) -> str:
    """Where an example stands, as a sentence says it.

    >>> place("dev.tsv", 7), place("dev.parquet.gz", 7)
    ('dev.tsv line 7', 'dev.parquet.gz row 7')
    """
    return f"{path} {_unit(str(path).lower())} {line}"


def header_place(path: str | Path, line: int) -> str:
    """Where the columns of the first row are named: above it, or in it."""
    above = {".csv", ".tsv"} & set(Path(str(path).lower()).suffixes[-2:])
    return place(path, 1 if above else line)


@lru_cache
def _unit(path: str) -> str:
    units = [UNITS[ending] for ending in Path(path).suffixes[-2:] if ending in UNITS]
    return "row" if path.startswith("datasets:") else (*units, "line")[0]


def refuse_nothing(path: str | Path, examples: Sequence[Any], on_empty: OnEmpty) -> None:
    """Refuse a file with no example in it, where one was needed."""
    if not examples and on_empty == "refuse":
        raise InputError(f"{path} holds no examples.")


# ---- columns ------------------------------------------------------------------------------------


def find_columns(role: Role, columns: Iterable[str], where: str) -> Names | None:
    """The columns that play a role, None if there are none; several candidates are refused.

    Both columns of a pair are taken before one of them.

    >>> find_columns(LABEL, ["Text", "Label"], "a.csv line 1")
    ('Label',)
    >>> find_columns(PAIR, ["idx", "premise", "hypothesis"], "a.csv line 1")
    ('premise', 'hypothesis')
    >>> find_columns(TEXT, ["tweet", "review"], "a.csv")
    Traceback (most recent call last):
    firth.errors.InputError: a.csv has 'tweet' and 'review'; rename one, or say which to read: \
--column text=NAME.
    """
    there = {column.lower(): column for column in columns}
    there |= {column: column for column in columns}  # as it is written, before capitals
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
    role: Role, columns: Iterable[str], where: str, named: str | Names | None = None
) -> Names:
    """The columns that play a role, or those that a person has named; missing ones are refused."""
    columns = list(columns)
    chosen = (named,) if isinstance(named, str) else named
    found = chosen or find_columns(role, columns, where)
    missing = [name for name in found or role.names[0] if not found or name not in columns]
    if missing:
        raise no_column(where, " and ".join(f"'{name}'" for name in missing), columns, role)
    assert found
    return found


def find_label(
    role: Role, columns: Iterable[str], where: str, named: str | None, need: bool
) -> str | None:
    """The column with labels; where none are needed, none or several may seem to hold them."""
    if need or named:
        return need_columns(role, columns, where, named)[0]
    try:
        found = find_columns(role, columns, where)
    except InputError:
        return None
    return found[0] if found else None


def no_column(where: str, missing: str, columns: Sequence[str], role: Role) -> InputError:
    """The complaint about a missing column; text that stands in its place is not shown whole."""
    there = ", ".join(repr(name[:30]) for name in columns[:12]) or "none"
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    todo = other_divider(columns) or role.advice
    return InputError(f"{where} has no column {missing} (it has {there}{more}); {todo}")


# ---- fields -------------------------------------------------------------------------------------


def field(row: Mapping[str, Any], column: str, where: str) -> Any:
    """What a row holds in a column; rows of JSON need not all have the same."""
    if column not in row:
        raise InputError(f"{where} has no field '{column}', which rows before it have.")
    return row[column]


def row_text(row: Mapping[str, Any], column: str, where: str, on_empty: OnEmpty) -> str:
    """The text that a row holds in a column."""
    reading = Reading(column=column, strict=True)
    text = text_field(where, field(row, column, where), reading, Counter())
    if on_empty == "refuse" and (not text or text.isspace()):
        raise InputError(f"{where}: '{column}' is empty; fill it in or remove the row.")
    return text


def label_text(value: Any, where: str, column: str) -> str | None:
    """A label as text, whatever a file holds; None if it is missing.

    >>> [label_text(value, "a.jsonl line 1", "label") for value in (" good ", 1, True, "", None)]
    ['good', '1', 'true', None, None]
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value) if value == value else None  # a table's missing number is NaN
    return row_text({column: value}, column, where, "keep").strip() or None


def json_list(value: Any, where: str, column: str) -> Any:
    """The list that stands in a field of a table as JSON, and everything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: '{column}' is not a JSON list ({value!r:.40}).") from error


def text_list(value: Any, where: str, column: str) -> tuple[str, ...]:
    """A list of texts as they are; numbers become text."""
    if not isinstance(value, list):
        raise InputError(f"{where}: '{column}' is not a list but {type(value).__name__}.")
    return tuple(
        row_text({column: item}, column, where, "keep")
        if isinstance(item, str)
        else label_text(item, where, column) or ""
        for item in value
    )


def label_list(value: Any, where: str, column: str) -> tuple[str, ...]:
    """A list of labels; a missing one is refused."""
    labels = tuple(label.strip() for label in text_list(value, where, column))
    if not all(labels):
        raise InputError(f"{where}: one of '{column}' is empty.")
    return labels
