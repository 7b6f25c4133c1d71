"""Semantic search: build an index of a file once, and find the texts nearest to a query.

The index is a folder with the vectors and texts of all rows, and a description of the model, the
options and the file they were made from. It is rebuilt when one of these has changed. A search
compares the query with all vectors, so it is exact.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from firth.data.input_files import InputFile, single_input_file
from firth.data.readers import ReadOptions
from firth.inference.embedding.embed_file import (
    EmbeddingJournal,
    embedding_plan,
    load_journal,
    partial_folder,
    write_rows,
)
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vector_files import ENDS, TEXTS, VECTORS, IndexWriter
from firth.inference.embedding.vectors import Floats, embed
from firth.tokenizers.counting import Progress
from firth.utils.bad_rows import SKIPPED, bad_row_notes
from firth.utils.errors import UsageError
from firth.utils.files import sha256, sync_directory, write_json
from firth.utils.notebook import show_progress

INDEX, OLD, FORMAT = "index.json", ".old", 1
BLOCK_BYTES = 32 << 20  # of vectors compared at a time
ROUNDING_TOLERANCE = 1e-5  # of a cosine in float32
MTIME_MARGIN_NS = (
    2_000_000_000  # age from which on an equal modification time means an unchanged file
)


@dataclass(frozen=True)
class SearchHit:
    """A text found by a search."""

    row: int  # in the file, counted from 1
    score: float  # cosine similarity with the query
    text: str


@dataclass(frozen=True)
class SearchIndex:
    """Vectors and their texts, in memory or memory-mapped."""

    vectors: Floats  # (rows, W)
    texts: Sequence[str]
    path: Path | None = None
    built: bool = True  # False: loaded from disk
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # on bad rows

    def __len__(self) -> int:
        return len(self.vectors)


class StoredTexts(Sequence[str]):
    """The texts of an index, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self.ends: NDArray[np.int64] = np.load(folder / ENDS, mmap_mode="r", allow_pickle=False)
        with open(folder / TEXTS, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            empty = size == 0  # an empty file cannot be mapped
            self.pages = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self.ends) == 0 or int(self.ends[-1]) != size:
            raise ValueError("the index is inconsistent: texts and their ends differ")

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        begin = int(self.ends[row - 1]) if row else 0
        return self.pages[begin : int(self.ends[row])].decode()


# ---- searching --------------------------------------------------------------------------------


def search(embedder: Embedder, index: SearchIndex, query: str, *, top: int = 5) -> list[SearchHit]:
    """Find the texts whose vectors have the highest cosine similarity with the query, best first.

    `embedder` is that of queries: some models use different prompts for queries and texts. Empty
    rows are never found.
    """
    if not isinstance(query, str) or not query.strip():
        what = "empty" if isinstance(query, str) else f"not a text but {type(query).__name__}"
        raise UsageError(f"The query is {what}: enter a text.")
    if not isinstance(top, int) or top < 1:
        raise UsageError(f"`top`, the number of results, must be at least 1, not {top!r}.")
    # Empty texts of a stored index have no vectors.
    empty = 0 if index.path else sum(not text.strip() for text in index.texts)
    vector = embed(embedder, [query])[0]
    if not vector.any():  # of word vectors
        raise UsageError(f"The model knows no word of the query {query!r:.60}; use other words.")
    rows, scores = nearest_rows(index.vectors, vector, top + empty)
    found = zip(rows.tolist(), scores.tolist(), strict=True)
    hits = (SearchHit(row + 1, score, index.texts[row]) for row, score in found)
    return list(islice((hit for hit in hits if hit.text.strip()), top))


def nearest_rows(
    vectors: Floats, query: Floats, top: int, block: int = BLOCK_BYTES
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows with the highest cosine similarities, and these; ties by row number.

    Unit vectors are compared in float32, a block at a time, and the candidates again in float64.

    >>> vectors, query = np.eye(3, dtype=np.float32), np.array([0.6, 0.0, 0.8], np.float32)
    >>> nearest_rows(vectors, query, 2)[0].tolist()
    [2, 0]
    """
    rows, scores = np.empty(0, np.int64), np.empty(0, np.float64)
    step = max(1, block // (vectors.shape[1] * vectors.itemsize))
    length = float(np.linalg.norm(query.astype(np.float64)))
    direction = query / np.float32(length or 1.0)
    for begin in range(0, len(vectors), step):
        part = np.asarray(vectors[begin : begin + step])
        with np.errstate(invalid="ignore", over="ignore"):
            rough = part @ direction  # (rows of the block,)
        rough[~np.isfinite(rough)] = -np.inf
        threshold = np.partition(rough, -min(top, len(rough)))[-min(top, len(rough))]
        near = np.flatnonzero((rough >= threshold - ROUNDING_TOLERANCE) & np.isfinite(rough))
        rows = np.concatenate([rows, begin + near])
        scores = np.concatenate([scores, _cosines(part[near], direction)])
        best = np.lexsort((rows, -scores))[:top]
        rows, scores = rows[best], scores[best]
    return rows, scores


def _cosines(vectors: Floats, query: Floats) -> NDArray[np.float64]:
    """Compute cosines row by row, so that equal rows have equal cosines."""
    vectors64, query64 = vectors.astype(np.float64), query.astype(np.float64)
    lengths = np.sqrt((vectors64**2).sum(1) * (query64**2).sum())
    cosines: NDArray[np.float64] = (vectors64 * query64).sum(1)
    cosines /= np.where(lengths > 0, lengths, 1.0)
    return cosines


# ---- the index --------------------------------------------------------------------------------


def open_index(
    embedder: Embedder,
    file: str | Path,
    *,
    path: str | Path | None = None,
    reading: ReadOptions = ReadOptions(),
    progress: Progress = show_progress,
) -> SearchIndex:
    """Load the index of a file, next to it or at `path`; build it if missing or outdated."""
    source = single_input_file(file, reading)
    if not os.path.isfile(source.name):
        raise UsageError(
            f"{source.name} is not a regular file, so it cannot be indexed; save it to a file."
        )
    folder = Path(f"{source.name}.index" if path is None else path)
    plan = {**embedding_plan(embedder, source, reading), "format": FORMAT}
    del plan["batch"]  # changes only rounding
    stored = _read_metadata(folder)
    if stored is not None and stored["plan"] == plan and _same_file(folder, stored, source):
        with suppress(OSError, ValueError):  # rebuild a damaged index
            return _load(folder, stored, built=False)
    _build(embedder, source, reading, folder, plan, progress)
    made = _read_metadata(folder)
    assert made is not None
    return _load(folder, made, built=True)


def _read_metadata(folder: Path) -> dict[str, Any] | None:
    """Read the description of an index; None if there is none."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    not_an_index = UsageError(
        f"{folder} exists and is not an index; move it, or name another folder with --index."
    )
    if not (folder / INDEX).is_file():
        raise not_an_index
    try:
        values = json.loads((folder / INDEX).read_bytes())
        found = {key: values[key] for key in ("plan", "file", "faults")}
        return {**found, "notes": values.get("notes", [])}
    except (ValueError, TypeError, KeyError) as error:
        raise not_an_index from error


def _load(folder: Path, stored: dict[str, Any], built: bool) -> SearchIndex:
    vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
    texts = StoredTexts(folder)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError("the index is inconsistent: texts and vectors differ in number")
    return SearchIndex(vectors, texts, folder, built, stored["faults"], stored["notes"])


def _same_file(folder: Path, stored: dict[str, Any], source: InputFile) -> bool:
    """Return whether a file is unchanged, by size and modification time or, in doubt, by hash."""
    known, now = stored["file"], _state(source)
    if {**known, **now} == known and now["changed"] < known["seen"] - MTIME_MARGIN_NS:
        return True
    if now["size"] != known["size"] or sha256(Path(source.name)) != known["sha256"]:
        return False
    with suppress(OSError):  # next time the modification time suffices
        entry = {**stored, "file": {**known, **now, "seen": time.time_ns()}}
        write_json(folder / INDEX, entry)
    return True


def _state(source: InputFile) -> dict[str, Any]:
    status = os.stat(source.name)
    return {"size": status.st_size, "changed": status.st_mtime_ns}


def _build(
    embedder: Embedder,
    source: InputFile,
    reading: ReadOptions,
    folder: Path,
    plan: dict[str, Any],
    progress: Progress,
) -> None:
    seen = {"seen": time.time_ns(), **_state(source), "sha256": sha256(Path(source.name))}
    with partial_folder(folder, "Name another folder for the index with --index.") as work:
        full_plan = {**plan, "file": seen["sha256"]}
        journal = load_journal(work, full_plan)
        journal = journal if journal.plan == full_plan else EmbeddingJournal(full_plan)
        path = work / folder.name
        made = write_rows(embedder, source, reading, path, IndexWriter, journal, progress)
        notes = bad_row_notes(journal.bad_rows, journal.errors, SKIPPED)
        found = {"plan": plan, "file": seen, "faults": journal.faults, "notes": notes}
        write_json(made / INDEX, found)
        shutil.rmtree(work / OLD, ignore_errors=True)
        if folder.exists():
            os.rename(folder, work / OLD)
        os.rename(made, folder)
        sync_directory(folder.parent)
        shutil.rmtree(work)
