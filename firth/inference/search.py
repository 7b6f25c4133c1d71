"""Semantic search: an index of a file, built once, and the texts that are nearest to a query.

The index is a folder with the vectors of all rows, their texts, and a note of the model, the
options and the content of the file that they were made of. It is made anew when one of these has
changed. A search goes through all vectors, so what it finds is what there is.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from firth.errors import Misuse
from firth.files import sha256, sync_directory, write_json
from firth.inference.embed import Floats, embed
from firth.inference.embed_file import (
    Journal,
    load_journal,
    one_source,
    plan_of,
    workplace,
    write_rows,
)
from firth.inference.embedder import Embedder
from firth.inference.vector_files import ENDS, TEXTS, VECTORS, Searchable
from firth.text.counting import Progress
from firth.text.readers import Reading, Source

INDEX, OLD, FORMAT = "index.json", ".old", 1
BLOCK = 32 << 20  # bytes of vectors that are looked at together
NEAR = 1e-5  # what rounding may add to a cosine in single precision
SETTLED = 2_000_000_000  # nanoseconds after which a file's date tells whether it was changed


@dataclass(frozen=True)
class Hit:
    """A text that was found."""

    row: int  # in the file, counted from 1
    score: float  # the cosine of its vector and that of the query
    text: str


@dataclass(frozen=True)
class Index:
    """Vectors and the texts they stand for, in memory or in files that are mapped into it."""

    vectors: Floats  # (rows, W)
    texts: Sequence[str]
    path: Path | None = None
    built: bool = True  # just now; False: it was there
    faults: dict[str, dict[str, int]] | None = None

    def __len__(self) -> int:
        return len(self.vectors)


class StoredTexts(Sequence[str]):
    """The texts of an index, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.ends: NDArray[np.int64] = np.load(folder / ENDS, mmap_mode="r", allow_pickle=False)
        with open(folder / TEXTS, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            empty = size == 0  # nothing can be mapped of an empty file
            self.pages = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self.ends) == 0 or int(self.ends[-1]) != size:
            raise ValueError("texts and their ends do not fit")

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


def search(embedder: Embedder, index: Index, query: str, *, top: int = 5) -> list[Hit]:
    """The texts whose vectors point most nearly where the query's does, best first.

    `embedder` is the query's: some models put other words before a query than before a text. Rows
    without words are never found, however near the vector of nothing may be.
    """
    if not query.strip():
        raise Misuse("The query is empty: say what to look for.")
    if top < 1:
        raise Misuse(f"At least one text must be asked for, not {top}.")
    rows, scores = nearest(index.vectors, embed(embedder, [query])[0], top + _empty(index))
    found = zip(rows.tolist(), scores.tolist(), strict=True)
    hits = (Hit(row + 1, score, index.texts[row]) for row, score in found)
    return list(islice((hit for hit in hits if hit.text.strip()), top))


def _empty(index: Index) -> int:
    """How many rows have no words."""
    if index.faults is None:
        return sum(not text.strip() for text in index.texts)
    return index.faults.get("empty", {}).get("count", 0)


def nearest(
    vectors: Floats, query: Floats, top: int, block: int = BLOCK
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows with the largest cosines, and these; of equal ones, the first row comes first.

    The vectors have a length of one. They are compared in single precision, a block at a time,
    and what may be among the best once more in double.

    >>> nearest(np.eye(3, dtype=np.float32), np.array([0.6, 0.0, 0.8], np.float32), 2)[0].tolist()
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
        least = np.partition(rough, -min(top, len(rough)))[-min(top, len(rough))]
        near = np.flatnonzero((rough >= least - NEAR) & np.isfinite(rough))
        rows = np.concatenate([rows, begin + near])
        scores = np.concatenate([scores, _cosines(part[near], direction)])
        best = np.lexsort((rows, -scores))[:top]
        rows, scores = rows[best], scores[best]
    return rows, scores


def _cosines(vectors: Floats, query: Floats) -> NDArray[np.float64]:
    """Added up row by row, so that equal rows have equal cosines."""
    wide, sought = vectors.astype(np.float64), query.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(1) * (sought * sought).sum())
    cosines: NDArray[np.float64] = (wide * sought).sum(1) / np.where(lengths > 0, lengths, 1.0)
    return cosines


# ---- the index --------------------------------------------------------------------------------


def open_index(
    embedder: Embedder,
    file: str | Path,
    *,
    place: str | Path | None = None,
    reading: Reading = Reading(),
    progress: Progress = lambda what, done, total: None,
) -> Index:
    """The index of a file: the one beside it (or at `place`) if it is still right, or a new one."""
    source = one_source(file, reading)
    if not os.path.isfile(source.name):
        raise Misuse(f"{source.name} is not a file, so there is no index of it; save it to one.")
    folder = Path(f"{source.name}.index" if place is None else place)
    plan = {**plan_of(embedder, source, reading), "format": FORMAT}
    del plan["batch"]  # it changes no more than the last bits
    stored = _stored(folder)
    if stored is not None and stored["plan"] == plan and _same_file(folder, stored, source):
        with suppress(OSError, ValueError):  # what is damaged is made anew
            return _opened(folder, stored, built=False)
    _build(embedder, source, reading, folder, plan, progress)
    made = _stored(folder)
    assert made is not None
    return _opened(folder, made, built=True)


def _stored(folder: Path) -> dict[str, Any] | None:
    """What an index says of itself; None where there is none."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    strange = Misuse(
        f"{folder} exists and is not an index; move it, or name another place with --index."
    )
    if not (folder / INDEX).is_file():
        raise strange
    try:
        values = json.loads((folder / INDEX).read_bytes())
        return {key: values[key] for key in ("plan", "file", "faults")}
    except (ValueError, TypeError, KeyError) as error:
        raise strange from error


def _opened(folder: Path, stored: dict[str, Any], built: bool) -> Index:
    vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
    texts = StoredTexts(folder)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError("texts and vectors do not fit")
    return Index(vectors, texts, folder, built, stored["faults"])


def _same_file(folder: Path, stored: dict[str, Any], source: Source) -> bool:
    """Whether a file still holds what it did: by its size and date, and by its sum in doubt."""
    known, now = stored["file"], _state(source)
    if {**known, **now} == known and now["changed"] < known["seen"] - SETTLED:
        return True
    if now["size"] != known["size"] or sha256(Path(source.name)) != known["sha256"]:
        return False
    with suppress(OSError):  # next time its date will do
        entry = {**stored, "file": {**known, **now, "seen": time.time_ns()}}
        write_json(folder / INDEX, entry)
    return True


def _state(source: Source) -> dict[str, Any]:
    status = os.stat(source.name)
    return {"size": status.st_size, "changed": status.st_mtime_ns}


def _build(
    embedder: Embedder,
    source: Source,
    reading: Reading,
    folder: Path,
    plan: dict[str, Any],
    progress: Progress,
) -> None:
    seen = {"seen": time.time_ns(), **_state(source), "sha256": sha256(Path(source.name))}
    with workplace(folder, "Name another place for the index with --index.") as work:
        wanted = {**plan, "file": seen["sha256"]}
        journal = load_journal(work, wanted)
        journal = journal if journal.plan == wanted else Journal(wanted)
        path = work / folder.name
        made = write_rows(embedder, source, reading, path, Searchable, journal, progress)
        write_json(made / INDEX, {"plan": plan, "file": seen, "faults": journal.faults})
        shutil.rmtree(work / OLD, ignore_errors=True)
        if folder.exists():
            os.rename(folder, work / OLD)
        os.rename(made, folder)
        sync_directory(folder.parent)
        shutil.rmtree(work)
