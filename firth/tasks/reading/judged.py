"""Sentences that are judged or finished: minimal pairs, and texts without their last word."""

from __future__ import annotations

from pathlib import Path

from firth.errors import InputError
from firth.tasks.reading.columns import (
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
    refuse_nothing,
    row_text,
    table_rows,
)
from firth.tasks.reading.examples import LastWord, MinimalPair


def read_minimal_pairs(
    path: str | Path, *, on_empty: OnEmpty = "refuse", format: str | None = None, limit: int = 0
) -> list[MinimalPair]:
    """Pairs as BLiMP writes them (Warstadt et al. 2020), with `UID` or the like as category.

    A file whose rows do not say what they are about is one category, by its own name. BLiMP's own
    files hold a few pairs of equal sentences; they are read like the rest.

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
        said = {name: label_text(row.get(name), where, name) or "" for name in CATEGORY}
        category = next(filter(None, said.values()), stem(path))
        kinds = {"term": said["linguistics_term"], "field": said["field"]}
        examples.append(MinimalPair(good=good, bad=bad, category=category, **kinds, line=line))
        if len(examples) == limit:
            break
    refuse_nothing(path, examples, on_empty)
    return examples


def stem(path: str | Path) -> str:
    """The name of a file without its endings.

    >>> stem("blimp/adjunct_island.jsonl.gz")
    'adjunct_island'
    """
    return Path(path).name.split(".")[0]


def read_last_words(
    path: str | Path, *, text: str | None = None, format: str | None = None, limit: int = 0
) -> list[LastWord]:
    """Texts and their last words (LAMBADA, Paperno et al. 2016); in plain text, one on each line.

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
        if not whole:  # an empty line of plain text is no example
            continue
        before = whole[: len(whole) - len(whole.split()[-1])].rstrip()
        if not before:
            raise InputError(f"{where}: {whole!r:.40} is a single word; nothing stands before it.")
        word = whole[len(before) :].lstrip()
        examples.append(LastWord(text=before, word=word, line=line))
        if len(examples) == limit:
            break
    refuse_nothing(path, examples, "refuse")
    return examples
