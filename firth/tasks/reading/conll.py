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
    TAGS,
    WORDS,
    OnEmpty,
    field,
    find_label,
    find_source,
    header_place,
    label_list,
    need_columns,
    place,
    refuse_nothing,
    spared,
    task_lines,
    task_rows,
    text_list,
)
from firth.tasks.reading.examples import Tagged
from firth.text.readers import Bad, Source

LONGEST_SENTENCE = 10_000  # words; a longer one is a file without empty lines
PREFIXED = re.compile(r"[BIESLU]-.")
COMMENT = re.compile(r"# \S+ = ")
SEVERAL = re.compile(r"\d+[-.]\d+")  # CoNLL-U: two words written as one, and words left out

LISTS = ("jsonl", "parquet", "datasets")  # rows with lists; everything else has columns

Line = tuple[int, list[str]]  # its number, its fields
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
    source = find_source(path, format or "conll")
    if source.format in LISTS:
        names = (_kind(path, words, str), _kind(path, tags, str))
        examples = list(_lists(path, source, *names, need_tags, on_empty))
    else:
        numbers = (_kind(path, words, int), _kind(path, tags, int))
        examples = list(_sentences(path, source, *numbers, need_tags))
    refuse_nothing(path, examples, on_empty)
    return examples


def each_sentence(
    path: str | Path,
    *,
    words: int | str | None = None,
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Tagged]:
    """Sentences, one after the other; nobody looks at tags."""
    source = find_source(path, format or "conll")
    if source.format in LISTS:
        column = ""
        for line, row in task_rows(source, bad=bad):
            where = place(path, line)
            with spared(bad):
                named = _kind(path, words, str)
                column = column or need_columns(WORDS, row, header_place(path, line), named)[0]
                yield Tagged(words=_words(row, column, where), line=line)
        return
    for block, layout in _blocks_of(path, source, _kind(path, words, int), None, None, bad):
        with spared(bad):
            said = tuple(layout.pick(*line)[0] for line in block)
            yield Tagged(words=said, line=block[0][0])


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
    source: Source,
    words: str | None,
    tags: str | None,
    need_tags: bool,
    on_empty: OnEmpty,
) -> Iterator[Tagged]:
    """Sentences from rows with lists of words and tags."""
    prefixes, column = Prefixes(path), ""
    for line, row in task_rows(source):
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
    path: str | Path, source: Source, words: int | None, tags: int | None, need_tags: bool
) -> Iterator[Tagged]:
    """Sentences from lines with columns."""
    prefixes = Prefixes(path)
    for block, layout in _blocks_of(path, source, words, tags, need_tags):
        picked = [layout.pick(*line) for line in block]
        for (line, _), (*_, tag_of) in zip(block, picked, strict=True):
            if layout.tag is not None:
                prefixes.see(tag_of, line)
        said, *marked = zip(*picked, strict=True)
        yield Tagged(words=said, tags=marked[0] if marked else None, line=block[0][0])


def _blocks_of(
    path: str | Path,
    source: Source,
    words: int | None,
    tags: int | None,
    need_tags: bool | None,
    bad: Bad | None = None,
) -> Iterator[tuple[list[Line], Layout]]:
    """The lines of each sentence, and what they have in common; None: nobody looks at tags."""
    conllu = ".conllu" in Path(source.name.lower()).suffixes
    lines, first, width = _look_ahead(_fields(source, bad), "#" if conllu else "# ")
    word = words or (2 if conllu else 1)
    tag = tags or (4 if conllu else -1)
    if width == 1 and need_tags:
        raise InputError(f"{place(path, first)} has one field; a word needs its tag beside it.")
    has_tags = need_tags is not None and (width > 1 or need_tags)
    layout = Layout(path, first, width, word, tag if has_tags else None, conllu)
    return ((block, layout) for block in _blocks(lines, layout))


def _fields(source: Source, bad: Bad | None) -> Iterator[Line]:
    """The fields of each line; none for an empty line."""
    for number, line in task_lines(source, bad):
        line = line.rstrip(" \t")
        if "\t" in line:
            yield number, [part.strip(" ") for part in line.split("\t")]
        else:
            yield number, [part for part in line.split(" ") if part]


def _look_ahead(lines: Iterator[Line], mark: str) -> tuple[Iterator[Line], int, int]:
    """All lines again, and the line and the number of fields of the first that is no comment."""
    head: list[Line] = []
    for number, fields in lines:
        head.append((number, fields))
        if fields and not _has_mark(fields, mark):
            return chain(head, lines), number, len(fields)
        if len(head) > LONGEST_SENTENCE:
            break
    return chain(head, lines), 1, 2  # a word and its tag


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
