"""Reader of word pairs with the scores that people gave to their similarity."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import TaskFile, find_source, lines_in, opened, place, rows_in
from firth.utils.errors import InputError

LINES = ("txt", "md", "tsv", "csv")  # formats that are read line by line
SEPARATORS = ("\t", ",", ";")  # the first that a line has, else spaces
SCORES = ("simlex999", "score", "human (mean)", "similarity", "rating", "mean", "label", "gold")


@dataclass(frozen=True, kw_only=True, slots=True)
class WordPair:
    """Two words, and how similar people find them."""

    first: str
    second: str
    score: float
    line: int = 0


def read_word_pairs(file: TaskFile) -> Iterator[WordPair]:
    """Yield word pairs: two words and a number, separated by tabs, commas or spaces.

    A first line without a number is a header, which may name the column of scores (SimLex999,
    score, …). Otherwise the score is the first number after the words. Lines that begin with # are
    comments.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "pairs.csv")
    >>> _ = path.write_text("Word 1,Word 2,Human (mean)\\ntiger,cat,7.35\\n")
    >>> next(read_word_pairs(TaskFile(path)))
    WordPair(first='tiger', second='cat', score=7.35, line=2)
    """
    named: int | None = None  # the column of scores
    found = begun = False
    for line, fields in read_fields(file):
        if not begun:
            begun = True
            if len(fields) > 2 and not _numbers(fields):
                names = [field.lower() for field in fields]
                named = next((names.index(name) for name in SCORES if name in names), None)
                continue
        with reporting_errors(file.bad):
            yield _pair(fields, named, line, place(file.path, line))
            found = True
    file.require_examples(found)


def _pair(fields: Sequence[str], named: int | None, line: int, where: str) -> WordPair:
    numbers = _numbers(fields)
    column = named if named in numbers or not numbers else numbers[0] if named is None else None
    if column is None or column not in numbers or not all(fields[:2]):
        raise InputError(f"{where} is not two words and a number: {' '.join(fields)!r:.60}.")
    first, second = fields[:2]
    return WordPair(first=first, second=second, score=float(fields[column]), line=line)


def _numbers(fields: Sequence[str]) -> list[int]:
    """Return which columns after the second have a number.

    >>> _numbers(["old", "new", "A", "1.58", "2.72"])
    [3, 4]
    """
    return [place for place, field in enumerate(fields) if place > 1 and _is_number(field)]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read_fields(file: TaskFile) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each line or row, without blank lines and comments."""
    source = find_source(file.path, file.format, "txt")
    with opened(source) as (source, raw):
        if source.format not in LINES:
            for line, row in rows_in(source, raw, bad=file.bad):
                yield line, [str(value).strip() for value in row.values()]
            return
        for line, text in lines_in(source, raw, file.bad):
            if text.strip() and not text.startswith("#"):
                yield line, split_fields(text)


def split_fields(line: str) -> list[str]:
    """Split a line at tabs, else commas, else semicolons, else spaces.

    >>> split_fields('tiger,"cat",7.35'), split_fields("New York\\tcity\\t8")
    (['tiger', 'cat', '7.35'], ['New York', 'city', '8'])
    """
    separator = next((one for one in SEPARATORS if one in line), None)
    if separator is None:
        return line.split()
    [fields] = [line.split("\t")] if separator == "\t" else csv.reader([line], delimiter=separator)
    return [field.strip() for field in fields]
