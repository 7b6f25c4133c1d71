"""Readers of minimal pairs (BLiMP) and last words (LAMBADA)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import (
    CATEGORY,
    GOOD_AND_BAD,
    PASSAGE,
    Names,
    TaskFile,
    find_source,
    header_place,
    label_text,
    need_columns,
    place,
    row_text,
    table_rows,
)
from firth.tasks.readers.examples import LastWord, MinimalPair
from firth.utils.errors import InputError


def read_minimal_pairs(file: TaskFile) -> Iterator[MinimalPair]:
    """Yield pairs in BLiMP's format (Warstadt et al. 2020); `UID` or the like is the category.

    Without such a column, the file's name is the category. BLiMP's own files have a few pairs of
    equal sentences, which are read like the others.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.jsonl")
    >>> _ = path.write_text('{"sentence_good": "I am.", "sentence_bad": "I is.", "UID": "be"}')
    >>> next(read_minimal_pairs(TaskFile(path)))
    MinimalPair(good='I am.', bad='I is.', category='be', term='', field='', line=1)
    """
    names: Names = ()
    stem = Path(str(file.path)).name.split(".")[0]
    for line, row in file.table_rows():
        where = place(file.path, line)
        with reporting_errors(file.bad):
            names = names or need_columns(GOOD_AND_BAD, row, header_place(file.path, line))
            good, bad = (row_text(row, column, where, allow_empty=False) for column in names)
            labels = {name: label_text(row[name], where, name) for name in CATEGORY if name in row}
            category = next(filter(None, labels.values()), stem)
            term, field = (labels.get(name) or "" for name in ("linguistics_term", "field"))
            yield MinimalPair(
                good=good, bad=bad, category=category, term=term, field=field, line=line
            )
    file.require_examples(names)


def read_last_words(file: TaskFile) -> Iterator[LastWord]:
    """Yield texts and their last words (LAMBADA, Paperno et al. 2016); plain text has one per line.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "lambada.txt")
    >>> _ = path.write_text("After dark we saw the moon\\n")
    >>> next(read_last_words(TaskFile(path)))
    LastWord(text='After dark we saw the', word='moon', line=1)
    """
    before, column, source = "", "", find_source(file.path, file.format)
    for line, row in table_rows(source, file.bad):
        where, named = place(file.path, line), file.columns.get("text")
        with reporting_errors(file.bad):
            column = column or need_columns(PASSAGE, row, header_place(file.path, line), named)[0]
            plain = source.format in ("txt", "md")
            whole = row_text(row, column, where, allow_empty=plain).rstrip()
            if not whole:  # skip empty lines of plain text
                continue
            start = whole[: len(whole) - len(whole.split()[-1])].rstrip()
            if not start:
                raise InputError(f"{where}: {whole!r:.40} is a single word; give at least two.")
            before = start
            yield LastWord(text=before, word=whole[len(before) :].lstrip(), line=line)
    file.require_examples(before)
