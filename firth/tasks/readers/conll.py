"""Reader of tagged sentences: CoNLL columns, or lists in JSONL and Parquet.

The word is in the first column and its tag in the last; in CoNLL-U (`.conllu`) in the second and
fourth, the part of speech. Columns are separated by tabs if a line has one, else by spaces;
sentences by empty lines, documents by `-DOCSTART-`. A line before a sentence that begins with `# `
is a comment, unless it has as many columns as the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from firth.data.conll import COMMENT, DOCUMENT_START, EXTENSIONS, MULTIWORD, fields_of
from firth.data.input_files import InputFile
from firth.data.memory import Source
from firth.data.readers import Row, check_utf8, reporting_errors
from firth.tasks.readers.columns import (
    LABEL,
    SOURCE_AND_TARGET,
    TAGS,
    TEXT,
    TEXT_OR_PAIR,
    WORDS,
    TaskFile,
    empty_field,
    find_columns,
    find_label,
    find_source,
    header_place,
    label_list,
    need_columns,
    opened,
    place,
    row_field,
    row_text,
    rows_in,
    task_rows,
    text_list,
)
from firth.tasks.readers.examples import TaggedExample
from firth.tasks.readers.plain_words import FileLayout, detect_layout, split_words
from firth.utils.errors import InputError, UsageError

MAX_SENTENCE = 10_000  # words; more mean that empty lines are missing
PREFIXED = re.compile(r"[BIESLU]-.")

TABLES = (TEXT_OR_PAIR, LABEL, SOURCE_AND_TARGET)  # columns of other tasks' tables
LIST_FORMATS = ("jsonl", "parquet", "datasets", "memory")  # rows with lists; others have columns

COLUMNS = {f".{ending}" for ending in EXTENSIONS}  # extensions of files with tags

Line = tuple[int, list[str]]  # number and fields
Numbered = tuple[int, str]  # number and text


def read_tagged(file: TaskFile) -> Iterator[TaggedExample]:
    """Yield sentences and their tags, for training and evaluation.

    The columns `words` and `tags` are named by numbers, from 1, or from -1 for the last; in JSONL
    and Parquet by names.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "names.conll")
    >>> _ = path.write_text("Ada B-PER\\nsleeps O\\n\\nRain O\\n")
    >>> [(sentence.words, sentence.tags) for sentence in read_tagged(TaskFile(path))]
    [(('Ada', 'sleeps'), ('B-PER', 'O')), (('Rain',), ('O',))]
    """
    if "text" in file.columns:
        raise UsageError(
            "Training needs words and tags: the column text=NAME is for `predict` only."
        )
    found = 0
    with opened(find_source(file.path, file.format, "conll")) as (source, raw):
        if source.format in LIST_FORMATS:
            examples = _rows(file, rows_in(source, raw, bad=file.bad))
        else:
            examples = _sentences(file, source, _lines(source, raw))
        for example in examples:
            found += 1
            yield example
    file.require_examples(found)


def read_sentences(file: TaskFile) -> Iterator[TaggedExample]:
    """Yield sentences for prediction, ignoring tags.

    Input may also be plain texts: lines, or a column of a table. Whether lines are texts or CoNLL
    is decided by the format (txt, conll, conllu), by the extension, or by the first lines.
    """
    with opened(find_source(file.path, file.format, "conll")) as (source, raw):
        if source.format in (*LIST_FORMATS, "csv") or (source.format == "tsv" and source.is_stream):
            yield from _rows(file, rows_in(source, raw, bad=file.bad))
            return
        lines = _lines(source, raw)
        head, layout = _layout(source, file.format, lines)
        if "text" in file.columns and layout != "table":
            raise UsageError(
                f"text={file.columns['text']} names a column, but {file.path} has no column names."
            )
        if layout == "unclear":
            raise InputError(
                f"{file.path} may be CoNLL or plain text; choose with --format conll or "
                "--format txt."
            )
        if layout == "text":
            for number, line in chain(head, lines):
                with reporting_errors(file.bad):
                    check_utf8([line], place(file.path, number))
                    yield TaggedExample(words=split_words(line), line=number)
            return
        if layout == "columns":
            yield from _sentences(file, source, chain(head, lines))
            return
    yield from _rows(file, task_rows(source, bad=file.bad))


def _lines(source: InputFile, raw: BinaryIO) -> Iterator[Numbered]:
    """Yield all lines; one that is not UTF-8 is an error of its sentence, and reported there."""
    return source.lines(raw, bad=lambda error: None)


def _layout(
    source: InputFile, format: str | None, lines: Iterator[Numbered]
) -> tuple[list[Numbered], FileLayout]:
    """Decide the layout by the format, the extension or the first lines."""
    if format in ("conll", "conllu") or COLUMNS & set(Path(source.name.lower()).suffixes):
        return [], "columns"
    if format in ("txt", "md") and source.format != "tsv":
        return [], "text"
    if source.format != "tsv":
        return detect_layout(lines)
    head, file_layout = detect_layout(lines, tabs=True)
    return head, file_layout if file_layout == "columns" else "table"


def _number(file: TaskFile, role: str) -> int | None:
    """The number of a column that the user named."""
    column = file.columns.get(role)
    if column is None or (re.fullmatch(r"-?\d{1,4}", column) and int(column)):
        return int(column) if column else None
    raise UsageError(f"The columns of {file.path} have numbers, from 1, not {column!r}.")


class TagSchemeCheck:
    """Checks that either all tags have a prefix (B-PER) or none has (NOUN)."""

    def __init__(self, path: Source) -> None:
        self.path = path
        self.known = {"O"}
        self.first: dict[bool, tuple[str, int]] = {}  # has a prefix -> first such tag, line

    def see(self, tag: str, line: int) -> None:
        """Check the tag of a word."""
        if tag in self.known:
            return
        self.known.add(tag)
        self.first.setdefault(bool(PREFIXED.match(tag)), (tag, line))
        if len(self.first) == 2:
            (bare, here), (other, there) = self.first[False], self.first[True]
            raise InputError(
                f"{place(self.path, here)}: the tag {bare!r:.40} has no prefix, but {other!r:.40} "
                f"in line {there} has; use B-, I-, E-, S-, L- or U- with the type, or O."
            )


# ---- rows ---------------------------------------------------------------------------------------


def _rows(file: TaskFile, rows: Iterator[Row]) -> Iterator[TaggedExample]:
    """Yield sentences from rows with lists of words, and of tags if needed, or with texts."""
    prefixes, column = TagSchemeCheck(file.path), ""
    for line, row in rows:
        where, example = place(file.path, line), None
        with reporting_errors(file.bad):
            if not column:
                header, words = header_place(file.path, line), file.columns.get("words")
                text, second = file.columns.get("text"), find_label(TAGS, row, header, file)
                listed = text is None and bool(second or words or find_columns(WORDS, row, header))
                role, chosen = (WORDS, words) if listed else (TEXT, text)
                column = need_columns(role, row, header, chosen)[0]
            if not listed:
                yield TaggedExample(words=split_words(row_text(row, column, where)), line=line)
                continue
            sentence, tags = _words(row, column, where), None
            if second:
                if not sentence or row.get(second) is None:
                    raise empty_field(where, second if sentence else column)
                tags = label_list(row[second], where, second)
                if len(tags) != len(sentence):
                    raise InputError(f"{where}: {len(sentence)} words but {len(tags)} tags.")
            example = TaggedExample(words=sentence, tags=tags, line=line)
        if example is not None:
            for tag in example.tags or ():  # another scheme is an error of the file
                prefixes.see(tag, line)
            yield example


def _words(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    words = text_list(row_field(row, column, where), where, column)
    if not all(words):
        raise InputError(f"{where}: a word is empty.")
    return words


# ---- columns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConllLayout:
    """The column layout of a CoNLL file."""

    path: Source
    first: int  # the line of the first word
    width: int  # its number of fields
    word: int  # column number, from 1 or from -1
    tag: int | None
    conllu: bool

    def is_word(self, fields: list[str], begun: bool) -> bool:
        """Whether a line is a word; `begun`: the sentence already has words."""
        if self.conllu:
            return not _has_mark(fields, "#") and not MULTIWORD.fullmatch(fields[0])
        if begun or not _has_mark(fields, "# "):
            return True
        return len(fields) == self.width and not COMMENT.match(" ".join(fields))

    def pick(self, line: int, fields: list[str]) -> list[str]:
        """Get the word of a line and, if there are tags, its tag."""
        check_utf8(fields, place(self.path, line))
        numbers = [number for number in (self.word, self.tag) if number is not None]
        # Columns counted from the last need lines of equal length.
        fits = len(fields) == self.width or min(numbers) > 0
        if not fits or len(fields) < max(map(abs, numbers)):
            raise InputError(
                f"{place(self.path, line)}: {len(fields)} fields where line {self.first} has "
                f"{self.width}; each line needs a word and its tag, an empty line ends a sentence."
            )
        picked = [fields[number - (number > 0)] for number in numbers]
        if not all(picked):
            raise InputError(f"{place(self.path, line)}: a word or its tag is empty.")
        return picked


def _sentences(
    file: TaskFile, source: InputFile, text: Iterator[Numbered]
) -> Iterator[TaggedExample]:
    """Yield sentences from lines with columns."""
    prefixes, tagged = TagSchemeCheck(file.path), file.labels == "required"
    conllu = source.format == "conllu" or ".conllu" in Path(source.name.lower()).suffixes
    fields = ((number, fields_of(line)) for number, line in text)
    lines, first, found = _look_ahead(fields, "#" if conllu else "# ")
    if tagged and _are_names(found):
        raise InputError(
            f"{place(file.path, first)} has column names ({', '.join(found):.60}), but tag needs "
            "CoNLL: a word and its tag per line, an empty line after each sentence."
        )
    if tagged and len(found) == 1:
        raise InputError(
            f"{place(file.path, first)} has one field; each line needs a word and its tag, and "
            "each sentence an empty line after it."
        )
    word = _number(file, "words") or (2 if conllu else 1)
    tag = (_number(file, "tags") or (4 if conllu else -1)) if tagged else None
    layout = ConllLayout(file.path, first, len(found), word, tag, conllu)
    for block in _blocks(lines, layout):
        example = None
        with reporting_errors(file.bad):
            picked = [layout.pick(*line) for line in block]
            sentence, *tags = zip(*picked, strict=True)
            example = TaggedExample(
                words=sentence, tags=tags[0] if tags else None, line=block[0][0]
            )
        if example is not None:
            for (line, _), own in zip(block, example.tags or (), strict=False):
                prefixes.see(own, line)
            yield example


def _look_ahead(lines: Iterator[Line], mark: str) -> tuple[Iterator[Line], int, list[str]]:
    """Return all lines, and number and fields of the first that is not a comment."""
    head: list[Line] = []
    for number, fields in lines:
        head.append((number, fields))
        if fields and not _has_mark(fields, mark):
            return chain(head, lines), number, fields
        if len(head) > MAX_SENTENCE:
            break
    return chain(head, lines), 1, ["", "O"]


def _are_names(fields: list[str]) -> bool:
    """Whether the first line is the header of another task's table.

    >>> _are_names(["text", "label"]), _are_names(["Text", "O"]), _are_names(["source", "target"])
    (True, False, True)
    """
    there = {field.lower() for field in fields}
    found = [any(set(names) <= there for names in role.names) for role in TABLES]
    return (found[0] and found[1]) or found[2]


def _has_mark(fields: list[str], mark: str) -> bool:
    """Whether a line begins with a comment mark."""
    return f"{fields[0]} ".startswith(mark)


def _blocks(lines: Iterator[Line], layout: ConllLayout) -> Iterator[list[Line]]:
    """Group lines into sentences."""
    block: list[Line] = []
    for number, fields in lines:
        if not fields or fields[0] == DOCUMENT_START:
            if block:
                yield block
            block = []
        elif layout.is_word(fields, bool(block)):
            block.append((number, fields))
        if len(block) > MAX_SENTENCE:
            raise InputError(
                f"{place(layout.path, block[0][0])}: a sentence of more than {MAX_SENTENCE:,} "
                "words; put an empty line after each sentence."
            )
    if block:
        yield block
