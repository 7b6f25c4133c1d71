"""Sentences with a tag for each word: CoNLL's columns, or lists in JSONL and Parquet.

A word stands in the first column and its tag in the last; in CoNLL-U (`.conllu`) in the second and
the fourth, which is the part of speech. Columns are divided by tabs where a line has one, else by
spaces. Sentences are divided by empty lines, documents by `-DOCSTART-`. A line before a sentence
that begins with `# ` is a comment, unless it has as many columns as the words have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from firth.errors import InputError, Misuse
from firth.tasks.reading.columns import (
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
    refuse_nothing,
    row_text,
    rows_in,
    spared,
    task_rows,
    text_list,
)
from firth.tasks.reading.examples import Tagged
from firth.tasks.reading.plain import Holds, fields_of, split_words, what_holds
from firth.text.readers import Bad, Row, Source

LONGEST_SENTENCE = 10_000  # words; a longer one is a file without empty lines
PREFIXED = re.compile(r"[BIESLU]-.")
COMMENT = re.compile(r"# \S+ = ")
SEVERAL = re.compile(r"\d+[-.]\d+")  # CoNLL-U: two words written as one, and words left out

TABLES = (TEXT_OR_PAIR, LABEL, SOURCE_AND_TARGET)  # what tables of other tasks hold
LISTS = ("jsonl", "parquet", "datasets")  # rows with lists; everything else has columns

COLUMNS = {".conll", ".conllu", ".iob", ".iob2"}  # endings that say that words have tags

Line = tuple[int, list[str]]  # its number, its fields
Numbered = tuple[int, str]  # a line before it is divided
Column = TypeVar("Column", int, str)


def read_tagged(
    path: str | Path,
    *,
    words: int | str | None = None,
    tags: int | str | None = None,
    need_tags: bool = True,
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
) -> list[Tagged]:
    """Sentences and their tags.

    `words` and `tags` are numbers of columns, from 1, or from the last, which is -1; in JSONL and
    Parquet they are names of columns. Where tags are not needed, a line may be a word alone.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "names.conll")
    >>> _ = path.write_text("Ada B-PER\\nsleeps O\\n\\nRain O\\n")
    >>> [(sentence.words, sentence.tags) for sentence in read_tagged(path)]
    [(('Ada', 'sleeps'), ('B-PER', 'O')), (('Rain',), ('O',))]
    """
    with opened(find_source(path, format, "conll")) as (source, raw):
        if source.format in LISTS:
            names = (_kind(path, words, str), _kind(path, tags, str))
            examples = list(_lists(path, rows_in(source, raw), *names, need_tags, on_empty))
        else:
            numbers = (_kind(path, words, int), _kind(path, tags, int))
            lines = lines_in(source, raw)
            examples = list(_sentences(path, source, lines, *numbers, need_tags))
    refuse_nothing(path, examples, on_empty)
    return examples


def each_sentence(
    path: str | Path,
    *,
    words: int | str | None = None,
    text: str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Tagged]:
    """Sentences, one after the other; nobody looks at tags.

    They may also be texts: lines, or a column of a table. Whether lines are texts or columns is
    said by `format` (txt, conll, conllu), by an ending such as .conll, or by the first few.
    """
    with opened(find_source(path, format, "conll")) as (source, raw):
        if source.format in (*LISTS, "csv") or (source.format == "tsv" and source.is_stream):
            yield from _rows(path, rows_in(source, raw, bad=bad), words, text, bad)
            return
        lines = lines_in(source, raw, bad)
        head, holds = _what(source, format, lines)
        if text is not None and holds != "table":
            raise Misuse(f"text={text} names a column, and {path} is no table with names.")
        if holds == "unclear":
            raise InputError(
                f"{path} may hold words with their tags or texts; say which with --format conll or "
                "--format txt."
            )
        if holds == "text":
            for number, line in chain(head, lines):
                yield Tagged(words=split_words(line), line=number)
            return
        if holds == "columns":
            numbered = _kind(path, words, int)
            blocks = _blocks_of(path, source, chain(head, lines), numbered, None, None)
            for block, layout in blocks:
                with spared(bad):
                    said = tuple(layout.pick(*line)[0] for line in block)
                    yield Tagged(words=said, line=block[0][0])
            return
    yield from _rows(path, task_rows(source, bad=bad), words, text, bad)


def _what(
    source: Source, format: str | None, lines: Iterator[Numbered]
) -> tuple[list[Numbered], Holds]:
    """What lines hold: as it was said, as the ending says, or as they look."""
    if format in ("conll", "conllu") or COLUMNS & set(Path(source.name.lower()).suffixes):
        return [], "columns"
    if format in ("txt", "md") and source.format != "tsv":
        return [], "text"
    if source.format != "tsv":
        return what_holds(lines)
    head, holds = what_holds(lines, tabs=True)
    return head, holds if holds == "columns" else "table"


def _rows(
    path: str | Path,
    rows: Iterator[Row],
    words: int | str | None,
    text: str | None,
    bad: Bad | None,
) -> Iterator[Tagged]:
    """Sentences from rows with lists of words or, where there are none, with texts."""
    column, listed = "", False
    for line, row in rows:
        where = place(path, line)
        with spared(bad):
            if not column:
                header, named = header_place(path, line), _kind(path, words, str)
                listed = text is None and bool(named or find_columns(WORDS, row, header))
                role, chosen = (WORDS, named) if listed else (TEXT, text)
                column = need_columns(role, row, header, chosen)[0]
            if listed:
                said = _words(row, column, where)
            else:
                said = split_words(row_text(row, column, where, "keep"))
            yield Tagged(words=said, line=line)


def _kind(path: str | Path, column: Any, kind: type[Column]) -> Column | None:
    """A column as a person named it, by name or by number, where that is right."""
    if kind is int and isinstance(column, str) and re.fullmatch(r"-?\d{1,4}", column):
        column = int(column)
    if column is None or (isinstance(column, kind) and column != 0):
        return column
    what = "names" if kind is str else "numbers, from 1"
    raise Misuse(f"The columns of {path} have {what}; {column!r} is none of them.")


class Prefixes:
    """Sees to it that all tags say where an entity begins (B-PER), or none does (NOUN)."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.known = {"O"}
        self.first: dict[bool, tuple[str, int]] = {}  # with a prefix and without: tag, line

    def see(self, tag: str, line: int) -> None:
        """Look at the tag of a word."""
        if tag in self.known:
            return
        self.known.add(tag)
        self.first.setdefault(bool(PREFIXED.match(tag)), (tag, line))
        if len(self.first) == 2:
            (bare, here), (other, there) = self.first[False], self.first[True]
            raise InputError(
                f"{place(self.path, here)}: the tag {bare!r:.40} has no prefix, which {other!r:.40}"
                f" in line {there} has; write it as B-, I-, E-, S-, L- or U- and the type, or as O."
            )


# ---- lists --------------------------------------------------------------------------------------


def _lists(
    path: str | Path,
    rows: Iterator[Row],
    words: str | None,
    tags: str | None,
    need_tags: bool,
    on_empty: OnEmpty,
) -> Iterator[Tagged]:
    """Sentences from rows with lists of words and tags."""
    prefixes, column = Prefixes(path), ""
    for line, row in rows:
        where = place(path, line)
        if not column:
            header = header_place(path, line)
            column = need_columns(WORDS, row, header, words)[0]
            second = find_label(TAGS, row, header, tags, need_tags)
        said = _words(row, column, where)
        value = row.get(second) if second else None
        marked = label_list(value, where, str(second)) if value is not None else None
        if (not said and on_empty == "refuse") or (marked is None and need_tags):
            empty = second if said else column
            raise InputError(f"{where}: '{empty}' is empty; fill it in or remove the row.")
        if marked is not None and len(marked) != len(said):
            raise InputError(f"{where}: {len(said)} words but {len(marked)} tags.")
        for tag in marked or ():
            prefixes.see(tag, line)
        yield Tagged(words=said, tags=marked, line=line)


def _words(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    said = text_list(field(row, column, where), where, column)
    if not all(said):
        raise InputError(f"{where}: a word is empty.")
    return said


# ---- columns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What all words of a file have in common."""

    path: str | Path
    first: int  # the line of the first word
    width: int  # its fields
    word: int  # number of the column, from 1 or from -1
    tag: int | None
    conllu: bool

    def is_word(self, fields: list[str], begun: bool) -> bool:
        """Whether a line holds a word, of a sentence that has begun before it or not."""
        if self.conllu:
            return not _has_mark(fields, "#") and not SEVERAL.fullmatch(fields[0])
        if begun or not _has_mark(fields, "# "):
            return True
        return len(fields) == self.width and not COMMENT.match(" ".join(fields))

    def pick(self, line: int, fields: list[str]) -> list[str]:
        """The word of a line and, if there are tags, its tag."""
        numbers = [number for number in (self.word, self.tag) if number is not None]
        fits = len(fields) == self.width or min(numbers) > 0  # from the last: all lines are alike
        if not fits or len(fields) < max(map(abs, numbers)):
            raise InputError(
                f"{place(self.path, line)}: {len(fields)} fields where line {self.first} has "
                f"{self.width}; each line has a word and its tag, an empty line ends a sentence."
            )
        picked = [fields[number - (number > 0)] for number in numbers]
        if not all(picked):
            raise InputError(f"{place(self.path, line)}: a word or its tag is empty.")
        return picked


def _sentences(
    path: str | Path,
    source: Source,
    lines: Iterator[Numbered],
    words: int | None,
    tags: int | None,
    need_tags: bool,
) -> Iterator[Tagged]:
    """Sentences from lines with columns."""
    prefixes = Prefixes(path)
    for block, layout in _blocks_of(path, source, lines, words, tags, need_tags):
        picked = [layout.pick(*line) for line in block]
        for (line, _), (*_, tag_of) in zip(block, picked, strict=True):
            if layout.tag is not None:
                prefixes.see(tag_of, line)
        said, *marked = zip(*picked, strict=True)
        yield Tagged(words=said, tags=marked[0] if marked else None, line=block[0][0])


def _blocks_of(
    path: str | Path,
    source: Source,
    text: Iterator[Numbered],
    words: int | None,
    tags: int | None,
    need_tags: bool | None,
) -> Iterator[tuple[list[Line], Layout]]:
    """The lines of each sentence, and what they have in common; None: nobody looks at tags."""
    conllu = source.format == "conllu" or ".conllu" in Path(source.name.lower()).suffixes
    fields = ((number, fields_of(line)) for number, line in text)
    lines, first, found = _look_ahead(fields, "#" if conllu else "# ")
    width = len(found)
    if need_tags and _are_names(found):
        raise InputError(
            f"{place(path, first)} names columns ({', '.join(found):.60}), and a tagger learns "
            "from CoNLL: a word and its tag on each line, an empty line behind each sentence."
        )
    word = words or (2 if conllu else 1)
    tag = tags or (4 if conllu else -1)
    if width == 1 and need_tags:
        raise InputError(
            f"{place(path, first)} has one field; a word needs its tag beside it, and a sentence "
            "an empty line behind it."
        )
    has_tags = need_tags is not None and (width > 1 or need_tags)
    layout = Layout(path, first, width, word, tag if has_tags else None, conllu)
    return ((block, layout) for block in _blocks(lines, layout))


def _look_ahead(lines: Iterator[Line], mark: str) -> tuple[Iterator[Line], int, list[str]]:
    """All lines again, and the line and the fields of the first that is no comment."""
    head: list[Line] = []
    for number, fields in lines:
        head.append((number, fields))
        if fields and not _has_mark(fields, mark):
            return chain(head, lines), number, fields
        if len(head) > LONGEST_SENTENCE:
            break
    return chain(head, lines), 1, ["", "O"]


def _are_names(fields: list[str]) -> bool:
    """Whether a first line is the header of a table of another task.

    >>> _are_names(["text", "label"]), _are_names(["Text", "O"]), _are_names(["source", "target"])
    (True, False, True)
    """
    there = {field.lower() for field in fields}
    found = [any(set(names) <= there for names in role.names) for role in TABLES]
    return (found[0] and found[1]) or found[2]


def _has_mark(fields: list[str], mark: str) -> bool:
    """Whether a line seems to be a comment."""
    return f"{fields[0]} ".startswith(mark)


def _blocks(lines: Iterator[Line], layout: Layout) -> Iterator[list[Line]]:
    """The words of one sentence after the other."""
    block: list[Line] = []
    for number, fields in lines:
        if not fields or fields[0] == "-DOCSTART-":
            if block:
                yield block
            block = []
        elif layout.is_word(fields, bool(block)):
            block.append((number, fields))
        if len(block) > LONGEST_SENTENCE:
            raise InputError(
                f"{place(layout.path, block[0][0])}: a sentence of more than {LONGEST_SENTENCE:,} "
                "words; put an empty line behind each sentence."
            )
    if block:
        yield block
