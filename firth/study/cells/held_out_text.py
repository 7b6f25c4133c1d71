"""Held-out text of a study: documents that no run is trained on, and pieces of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.corpus import Corpus
from firth.study.cells.input_cells import File, prepared_text, stories
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.study import StudyInputs
from firth.utils.errors import InputError
from firth.utils.files import atomic_file

MIN_TEXTS = 20
MIN_WORDS = 5  # of a piece
MAX_PIECES = 50_000  # read from a corpus
HELD_OUT_EVERY = 50  # documents, of which the first is held out


def split_documents(context: CellContext, *, text: File) -> Mapping[str, Any]:
    """Write every 50th document to valid.jsonl, the others to train.jsonl."""
    path, counts = context.path(text), [0, 0]
    with (
        atomic_file(context.folder / "train.jsonl") as train,
        atomic_file(context.folder / "valid.jsonl") as valid,
    ):
        for i, document in enumerate(Corpus([path])):
            held_out = i % HELD_OUT_EVERY == 0
            row = json.dumps({"text": document}, ensure_ascii=False).encode() + b"\n"
            (valid if held_out else train).write(row)
            counts[held_out] += 1
    if counts[0] < MIN_TEXTS:
        found = f"{sum(counts)} document{'s' * (sum(counts) != 1)}"
        raise InputError(f"{path} has {found}, too few to hold out one in fifty.")
    return {"train": counts[0], "valid": counts[1]}


def text_and_held_out(inputs: StudyInputs, *, words: int, vocab_size: int) -> tuple[Cell, File]:
    """Return the cell with tokenizer and shards, and the text that is held out of it."""
    folder = stories(words)
    train: File = folder / "train.txt"
    valid: File = folder / "dev.txt"
    if inputs.text is not None:
        split = Cell(split_documents, {"text": inputs.text}, name="held-out documents")
        train, valid = split / "train.jsonl", split / "valid.jsonl"
    settings = {"text": train, "valid": valid, "tokenizer": None, "vocab_size": vocab_size}
    return Cell(prepared_text, settings, name="tokenizer and shards"), valid


def text_pieces(path: Path, *, texts: int, max_words: int) -> list[str]:
    """Return up to `texts` pieces of at most `max_words` words, evenly spaced in a text."""
    found = list(split_pieces(Corpus([path]), max_words))
    if len(found) < MIN_TEXTS:
        raise InputError(f"{path} has {len(found)} texts; the study needs at least {MIN_TEXTS}.")
    places = np.linspace(0, len(found) - 1, min(texts, len(found))).astype(int)
    return [found[place] for place in np.unique(places)]


def split_pieces(documents: Iterable[str], max_words: int) -> Iterator[str]:
    """Yield pieces of documents with at most `max_words` words, and at least five.

    >>> list(split_pieces(["a b c d e f g h i j k l m"], 6))
    ['a b c d e f', 'g h i j k l']
    """
    count = 0
    for document in documents:
        words = document.split()
        for start in range(0, len(words), max_words):
            piece = words[start : start + max_words]
            if len(piece) >= min(MIN_WORDS, max_words):
                yield " ".join(piece)
                count += 1
            if count == MAX_PIECES:
                return
