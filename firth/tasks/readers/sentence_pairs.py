"""Readers of minimal pairs (BLiMP) and last words (LAMBADA)."""

from __future__ import annotations

from pathlib import Path

from firth.tasks.readers.columns import (
    CATEGORY,
    GOOD_AND_BAD,
    PASSAGE,
    Names,
    OnEmpty,
    find_source,
    header_place,
    label_text,
    need_columns,
    place,
    require_examples,
    row_text,
    table_rows,
)
from firth.tasks.readers.examples import LastWord, MinimalPair
from firth.utils.errors import InputError


def read_minimal_pairs(
    path: str | Path, *, on_empty: OnEmpty = "refuse", format: str | None = None, limit: int = 0
) -> list[MinimalPair]:
    """Read pairs in BLiMP's format (Warstadt et al. 2020); `UID` or the like is the category.

    Without such a column, the file's name is the category. BLiMP's own files have a few pairs of
    equal sentences, which are read like the others.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "pairs.jsonl")
    >>> _ = path.write_text('{"sentence_good": "I am.", "sentence_bad": "I is.", "UID": "be"}')
    >>> read_minimal_pairs(path)
    [MinimalPair(good='I am.', bad='I is.', category='be', term='', field='', line=1)]
    """
    examples: list[MinimalPair] = []
    names: Names = ()
    for line, row in table_rows(find_source(path, format)):
        where = place(path, line)
        names = names or need_columns(GOOD_AND_BAD, row, header_place(path, line))
        good, bad = (row_text(row, column, where, on_empty) for column in names)
        labels = {name: label_text(row.get(name), where, name) or "" for name in CATEGORY}
        category = next(filter(None, labels.values()), stem(path))
        kinds = {"term": labels["linguistics_term"], "field": labels["field"]}
        examples.append(MinimalPair(good=good, bad=bad, category=category, **kinds, line=line))
        if len(examples) == limit:
            break
    require_examples(path, examples, on_empty)
    return examples


def stem(path: str | Path) -> str:
    """The name of a file without its extensions.

    >>> stem("blimp/adjunct_island.jsonl.gz")
    'adjunct_island'
    """
    return Path(path).name.split(".")[0]


def read_last_words(
    path: str | Path, *, text: str | None = None, format: str | None = None, limit: int = 0
) -> list[LastWord]:
    """Read texts and their last words (LAMBADA, Paperno et al. 2016); plain text has one per line.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "lambada.txt")
    >>> _ = path.write_text("After dark we saw the moon\\n")
    >>> read_last_words(path)
    [LastWord(text='After dark we saw the', word='moon', line=1)]
    """
    examples: list[LastWord] = []
    column = ""
    source = find_source(path, format)
    for line, row in table_rows(source):
        where = place(path, line)
        column = column or need_columns(PASSAGE, row, header_place(path, line), text)[0]
        plain = source.format in ("txt", "md")
        whole = row_text(row, column, where, "keep" if plain else "refuse").rstrip()
        if not whole:  # skip empty lines of plain text
            continue
        before = whole[: len(whole) - len(whole.split()[-1])].rstrip()
        if not before:
            raise InputError(f"{where}: {whole!r:.40} is a single word; at least two are needed.")
        word = whole[len(before) :].lstrip()
        examples.append(LastWord(text=before, word=word, line=line))
        if len(examples) == limit:
            break
    require_examples(path, examples, "refuse")
    return examples
