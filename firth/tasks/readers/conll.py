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
from typing import Any, TypeVar

from firth.data.readers import Bad, InputFile, Row
from firth.tasks.readers.columns import (
    LABEL,
    SOURCE_AND_TARGET,
    TAGS,
    TEXT,
    TEXT_OR_PAIR,
    WORDS,
    OnEmpty,
    field,
    find_columns,
    find_label,
    find_source,
    header_place,
    label_list,
    lines_in,
    need_columns,
    opened,
    place,
    reporting_errors,
    require_examples,
    row_text,
    rows_in,
    task_rows,
    text_list,
)
from firth.tasks.readers.examples import TaggedExample
from firth.tasks.readers.plain_words import FileLayout, detect_layout, fields_of, split_words
from firth.utils.errors import InputError, UsageError

MAX_SENTENCE = 10_000  # words; more mean that empty lines are missing
PREFIXED = re.compile(r"[BIESLU]-.")
COMMENT = re.compile(r"# \S+ = ")
MULTIWORD = re.compile(r"\d+[-.]\d+")  # CoNLL-U: multiword tokens and empty nodes

TABLES = (TEXT_OR_PAIR, LABEL, SOURCE_AND_TARGET)  # columns of other tasks' tables
LIST_FORMATS = ("jsonl", "parquet", "datasets")  # rows with lists; others have columns

COLUMNS = {".conll", ".conllu", ".iob", ".iob2"}  # extensions of files with tags

Line = tuple[int, list[str]]  # number and fields
Numbered = tuple[int, str]  # number and text
Column = TypeVar("Column", int, str)


def read_tagged(
    path: str | Path,
    *,
    words: int | str | None = None,
    tags: int | str | None = None,
    need_tags: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
) -> list[TaggedExample]:
    """Read sentences and their tags.

    `words` and `tags` are column numbers, from 1, or from -1 for the last; in JSONL and Parquet
    they are column names. Unless `need_tags`, a line may be a word alone.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "names.conll")
    >>> _ = path.write_text("Ada B-PER\\nsleeps O\\n\\nRain O\\n")
    >>> [(sentence.words, sentence.tags) for sentence in read_tagged(path)]
    [(('Ada', 'sleeps'), ('B-PER', 'O')), (('Rain',), ('O',))]
    """
    with opened(find_source(path, format, "conll")) as (source, raw):
        if source.format in LIST_FORMATS:
            names = (_kind(path, words, str), _kind(path, tags, str))
            examples = list(_lists(path, rows_in(source, raw), *names, need_tags, on_empty))
        else:
            numbers = (_kind(path, words, int), _kind(path, tags, int))
            lines = lines_in(source, raw)
            examples = list(_sentences(path, source, lines, *numbers, need_tags))
    require_examples(path, examples, on_empty)
    return examples


def each_sentence(
    path: str | Path,
    *,
    words: int | str | None = None,
    text: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[TaggedExample]:
    """Yield sentences for prediction, ignoring tags.

    Input may also be plain texts: lines, or a column of a table. Whether lines are texts or CoNLL
    is decided by `format` (txt, conll, conllu), by the extension, or by the first lines.
    """
    with opened(find_source(path, format, "conll")) as (source, raw):
        if source.format in (*LIST_FORMATS, "csv") or (source.format == "tsv" and source.is_stream):
            yield from _rows(path, rows_in(source, raw, bad=bad), words, text, bad)
            return
        lines = lines_in(source, raw, bad)
        head, file_layout = _layout(source, format, lines)
        if text is not None and file_layout != "table":
            raise UsageError(f"text={text} names a column, but {path} has no column names.")
        if file_layout == "unclear":
            raise InputError(
                f"{path} may be CoNLL or plain text; choose with --format conll or --format txt."
            )
        if file_layout == "text":
            for number, line in chain(head, lines):
                yield TaggedExample(words=split_words(line), line=number)
            return
        if file_layout == "columns":
            numbered = _kind(path, words, int)
            blocks = _blocks_of(path, source, chain(head, lines), numbered, None, None)
            for block, layout in blocks:
                with reporting_errors(bad):
                    sentence = tuple(layout.pick(*line)[0] for line in block)
                    yield TaggedExample(words=sentence, line=block[0][0])
            return
    yield from _rows(path, task_rows(source, bad=bad), words, text, bad)


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


def _rows(
    path: str | Path,
    rows: Iterator[Row],
    words: int | str | None,
    text: str | None,
    bad: Bad | None,
) -> Iterator[TaggedExample]:
    """Yield sentences from rows with lists of words, or with texts."""
    column, listed = "", False
    for line, row in rows:
        where = place(path, line)
        with reporting_errors(bad):
            if not column:
                header, named = header_place(path, line), _kind(path, words, str)
                listed = text is None and bool(named or find_columns(WORDS, row, header))
                role, chosen = (WORDS, named) if listed else (TEXT, text)
                column = need_columns(role, row, header, chosen)[0]
            if listed:
                sentence = _words(row, column, where)
            else:
                sentence = split_words(row_text(row, column, where, "keep"))
            yield TaggedExample(words=sentence, line=line)


def _kind(path: str | Path, column: Any, kind: type[Column]) -> Column | None:
    """Check that the user named a column by name (str) or number (int), as the file needs."""
    if kind is int and isinstance(column, str) and re.fullmatch(r"-?\d{1,4}", column):
        column = int(column)
    if column is None or (isinstance(column, kind) and column != 0):
        return column
    what = "names" if kind is str else "numbers, from 1"
    raise UsageError(f"The columns of {path} have {what}, not {column!r}.")


class TagSchemeCheck:
    """Checks that either all tags have a prefix (B-PER) or none has (NOUN)."""

    def __init__(self, path: str | Path) -> None:
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


# ---- lists --------------------------------------------------------------------------------------


def _lists(
    path: str | Path,
    rows: Iterator[Row],
    words: str | None,
    tags: str | None,
    need_tags: bool,
    on_empty: OnEmpty,
) -> Iterator[TaggedExample]:
    """Yield sentences from rows with lists of words and tags."""
    prefixes, column = TagSchemeCheck(path), ""
    for line, row in rows:
        where = place(path, line)
        if not column:
            header = header_place(path, line)
            column = need_columns(WORDS, row, header, words)[0]
            second = find_label(TAGS, row, header, tags, need_tags)
        sentence = _words(row, column, where)
        value = row.get(second) if second else None
        marked = label_list(value, where, str(second)) if value is not None else None
        if (not sentence and on_empty == "refuse") or (marked is None and need_tags):
            empty = second if sentence else column
            raise InputError(f"{where}: '{empty}' is empty; fill it in or remove the row.")
        if marked is not None and len(marked) != len(sentence):
            raise InputError(f"{where}: {len(sentence)} words but {len(marked)} tags.")
        for tag in marked or ():
            prefixes.see(tag, line)
        yield TaggedExample(words=sentence, tags=marked, line=line)


def _words(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    words = text_list(field(row, column, where), where, column)
    if not all(words):
        raise InputError(f"{where}: a word is empty.")
    return words


# ---- columns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConllLayout:
    """The column layout of a CoNLL file."""

    path: str | Path
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
        numbers = [number for number in (self.word, self.tag) if number is not None]
        fits = (
            len(fields) == self.width or min(numbers) > 0
        )  # columns counted from the last need equal lines
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
    path: str | Path,
    source: InputFile,
    lines: Iterator[Numbered],
    words: int | None,
    tags: int | None,
    need_tags: bool,
) -> Iterator[TaggedExample]:
    """Yield sentences from lines with columns."""
    prefixes = TagSchemeCheck(path)
    for block, layout in _blocks_of(path, source, lines, words, tags, need_tags):
        picked = [layout.pick(*line) for line in block]
        for (line, _), (*_, tag_of) in zip(block, picked, strict=True):
            if layout.tag is not None:
                prefixes.see(tag_of, line)
        sentence, *marked = zip(*picked, strict=True)
        yield TaggedExample(words=sentence, tags=marked[0] if marked else None, line=block[0][0])


def _blocks_of(
    path: str | Path,
    source: InputFile,
    text: Iterator[Numbered],
    words: int | None,
    tags: int | None,
    need_tags: bool | None,
) -> Iterator[tuple[list[Line], ConllLayout]]:
    """Yield the lines of each sentence with the layout; need_tags None: ignore tags."""
    conllu = source.format == "conllu" or ".conllu" in Path(source.name.lower()).suffixes
    fields = ((number, fields_of(line)) for number, line in text)
    lines, first, found = _look_ahead(fields, "#" if conllu else "# ")
    width = len(found)
    if need_tags and _are_names(found):
        raise InputError(
            f"{place(path, first)} has column names ({', '.join(found):.60}), but tag needs CoNLL: "
            "a word and its tag per line, an empty line after each sentence."
        )
    word = words or (2 if conllu else 1)
    tag = tags or (4 if conllu else -1)
    if width == 1 and need_tags:
        raise InputError(
            f"{place(path, first)} has one field; each line needs a word and its tag, and each "
            "sentence an empty line after it."
        )
    has_tags = need_tags is not None and (width > 1 or need_tags)
    layout = ConllLayout(path, first, width, word, tag if has_tags else None, conllu)
    return ((block, layout) for block in _blocks(lines, layout))


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
        if not fields or fields[0] == "-DOCSTART-":
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
