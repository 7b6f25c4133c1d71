"""Word splitting for tagging, and detection of CoNLL files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal
from unicodedata import category

from firth.data.conll import DOCUMENT_START, MIN_TAGGED, TAG, Line, fields_of
from firth.data.tables import TEXTS

# The shape of a text: x for a letter, 0 for a digit, ^ for a combining mark; punctuation unchanged.
UNIT = r"[x0]\^*"
SHAPES = re.compile(
    rf"(?:x\.){{2,}}(?![x0])"  # U.S.
    rf"|(?:{UNIT})+(?:(?:[-'’./@&_]|(?<=0)[,:](?=0))(?:{UNIT})+)*"  # well-known, o'clock, 1,000
    r"|.\^*"
)
CONTRACTION = re.compile(r"(.+?)(n['’]t|['’](?:s|m|d|re|ve|ll))", re.IGNORECASE)  # Anna's, don't
COMBINING = ("Mn", "Mc", "Me", "Cf")

CAPITALS = re.compile(r"[BIESLU]-[A-Z_]{2,}")  # surely a tag, not a word
SPEECH = re.compile(r"[A-Z]{1,5}\$?|\W+|-[LR][CRS]B-|O|[BIESLU]-\S+")  # also parts of speech

FileLayout = Literal["columns", "text", "table", "unclear"]


def split_words(text: str) -> tuple[str, ...]:
    """Split a text into words and punctuation, as treebanks do.

    >>> split_words("Anna's dog didn't run at 10:30, in the well-known U.S. (3.5 miles).")
    ('Anna', "'s", 'dog', 'did', "n't", 'run', 'at', '10:30', ',', 'in', 'the', 'well-known', \
'U.S.', '(', '3.5', 'miles', ')', '.')
    """
    return tuple(word for part in text.split() for word in _words(part))


def _words(part: str) -> Iterator[str]:
    for found in SHAPES.finditer("".join(map(_shape, part))):
        word = part[found.start() : found.end()]
        shortened = CONTRACTION.fullmatch(word)
        yield from shortened.groups() if shortened else (word,)


def _shape(character: str) -> str:
    kind = category(character)
    if kind in COMBINING:
        return "^"
    return character if kind[0] in "PS" else "0" if kind[0] == "N" else "x"


def detect_layout(lines: Iterator[Line], tabs: bool = False) -> tuple[list[Line], FileLayout]:
    """Detect the layout by the first lines, which are returned as well.

    "columns" needs several consecutive words with entity tags. Lines that may be a word with its
    tag or a text are "unclear". With `tabs` (TSV), the first line may name columns, and tags may be
    parts of speech.

    >>> detect_layout(iter([(1, "Nora B-PER"), (2, "ran O"), (3, "")]))[1]
    'columns'
    >>> detect_layout(iter([(1, "Nora ran."), (2, "She fell.")]))
    ([(1, 'Nora ran.')], 'text')
    >>> detect_layout(iter([(1, "Type O")]))[1]
    'unclear'
    """
    head: list[Line] = []
    rows: list[list[str]] = []
    alike = True
    for number, line in lines:
        head.append((number, line))
        row = fields_of(line)
        if not rows and (not row or f"{row[0]} ".startswith("# ")) and len(head) < 1000:
            continue
        if not row or len(rows) == MIN_TAGGED:
            break
        if not rows and row[0] == DOCUMENT_START:
            return head, "columns"
        if not rows and tabs and not TAG.fullmatch(row[-1]) and _names_texts(row):
            return head, "table"
        rows.append(row)
        alike = len(row) == len(rows[0]) > 1 and SPEECH.fullmatch(row[-1]) is not None
        if not alike:
            break
    return head, _verdict(rows, alike, tabs, any("\t" in line for _, line in head))


def _names_texts(fields: list[str]) -> bool:
    return bool({field.lower() for field in fields} & set(TEXTS))


def _verdict(rows: list[list[str]], alike: bool, tabs: bool, tabbed: bool) -> FileLayout:
    tags = [row[-1] for row in rows]
    clear = any(tag == "O" or CAPITALS.fullmatch(tag) for tag in tags)
    if alike and ((len(rows) > 1 and clear and all(map(TAG.fullmatch, tags))) or (tabs and tabbed)):
        return "columns"
    if tabbed or tabs:
        return "unclear"
    if not rows or not alike:
        return "unclear" if any(map(CAPITALS.fullmatch, tags)) else "text"
    if len(rows[0]) == 2 or clear:
        return "unclear"
    return "text"
