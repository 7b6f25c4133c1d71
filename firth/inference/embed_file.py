"""A file of texts to a file of vectors: memory for one batch, and interrupted, it goes on.

Everything is written into `OUT.partial`, under its final name, with a journal beside it that says
how many rows are there. What is in that folder can be opened at any moment. The file leaves it
when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firth.errors import InputError, MismatchError, Misuse, storage_errors
from firth.files import locked, sync_directory, write_json
from firth.inference.embed import Tokens, Vectors, chunked, embed_chunks, encode_texts
from firth.inference.embedder import Embedder
from firth.inference.vector_files import Sink, sink_for
from firth.streams import holds_nothing
from firth.text.counting import Progress
from firth.text.readers import Reading, Source, find_sources

LOCK, JOURNAL = "embed.lock", "journal.json"
PAUSE = 1.0  # seconds between two entries in the journal, at least

MakeSink = Callable[[Path, int, int, int], Sink]


class Row(NamedTuple):
    """One text of a file."""

    text: str
    repaired: bool  # it had bytes that are not UTF-8
    read: int  # bytes of the file so far; 0 where that is not known


@dataclass
class Journal:
    """How far the work has come, and what was found on the way."""

    plan: dict[str, Any]
    rows: int = 0
    mark: int = 0  # how far the sink has come
    tokens: int = 0
    # Of each kind of fault how many rows have it, and the first of them, counted from 1.
    faults: dict[str, dict[str, int]] = field(default_factory=dict)

    def note(self, rows: list[Row], vectors: Vectors) -> None:
        """Count some rows in."""
        found = {
            "empty": np.array([not row.text.strip() for row in rows]),
            "repaired": np.array([row.repaired for row in rows]),
            "cut": vectors.cut,
            "not_finite": ~vectors.finite,
        }
        for fault, where in found.items():
            if where.any():
                first = self.rows + 1 + int(where.argmax())
                known = self.faults.setdefault(fault, {"count": 0, "first": first})
                known["count"] += int(where.sum())
        self.rows += len(rows)
        self.tokens += vectors.tokens

    def forget(self) -> None:
        """Begin anew."""
        self.rows = self.mark = self.tokens = 0
        self.faults = {}


@dataclass(frozen=True)
class Embedded:
    """What `embed_file` made."""

    out: Path
    rows: int
    width: int
    precision: str  # of the products of matrices: fp32, bf16 or fp16
    tokens: int
    faults: dict[str, dict[str, int]]
    resumed: int  # so many rows were there from an interrupted run
    seconds: float


def embed_file(
    embedder: Embedder,
    source: str | Path,
    out: str | Path,
    *,
    reading: Reading = Reading(),
    progress: Progress = lambda what, done, total: None,
) -> Embedded:
    """Write one vector for each row of a file; started again, it continues where it stopped.

    A row is a line of plain text, also an empty one, or a row of a table. `out` ends in .npy,
    .jsonl or .parquet; the last two hold the texts as well.
    """
    begun, out = time.monotonic(), Path(out)
    make = sink_for(out)
    rows = one_source(source, reading)
    plan = {**plan_of(embedder, rows, reading), "out": out.suffix, "source": state_of(rows)}
    with workplace(out, resumes=not rows.is_stream) as folder:
        journal = load_journal(folder, plan)
        if journal.plan != plan:
            raise MismatchError(
                f"{folder} holds the beginning of other vectors (of another model or file, or made "
                "with other options); remove it, or choose another --out."
            )
        if rows.is_stream:  # what has been read from it is gone
            journal.forget()
        found = journal.rows
        whole = write_rows(embedder, rows, reading, folder / out.name, make, journal, progress)
        os.replace(whole, out)
        sync_directory(out.parent)
        shutil.rmtree(folder)
    figures = journal.rows, embedder.width, embedder.precision, journal.tokens, journal.faults
    return Embedded(out, *figures, found, time.monotonic() - begun)


def one_source(path: str | Path, reading: Reading) -> Source:
    """The one file, or standard input, that a path stands for."""
    if os.path.isdir(path):
        raise Misuse(f"{path} is a directory; name one file.")
    sources, _ = find_sources([path], reading)
    if len(sources) > 1:
        raise Misuse(f"{path} stands for {len(sources)} files; name one.")
    return sources[0]


def plan_of(embedder: Embedder, source: Source, reading: Reading) -> dict[str, Any]:
    """All that decides which vectors are made of a file."""
    read = [source.format, source.compression, reading.column, reading.strict]
    return {"model": embedder.fingerprint, "batch": embedder.budget, "reading": read}


def state_of(source: Source) -> list[Any]:
    """Which file it is, and whether it has been changed."""
    if not os.path.isfile(source.name):
        return [source.format, source.name]
    status = os.stat(source.name)
    return [os.path.abspath(source.name), status.st_size, status.st_mtime_ns]


def read_rows(source: Source, reading: Reading, skip: int = 0) -> Iterator[Row]:
    """The rows of a file from some row on."""
    tally: Counter[str] = Counter()
    with source.open() as raw:
        texts = source.documents(raw, replace(reading, documents="row"), tally)
        for number, text in enumerate(texts):
            repaired = bool(tally["invalid bytes replaced"])
            tally.clear()
            if number >= skip:
                yield Row(text, repaired, raw.tell() if source.size else 0)


def write_rows(
    embedder: Embedder,
    source: Source,
    reading: Reading,
    path: Path,
    make: MakeSink,
    journal: Journal,
    progress: Progress,
) -> Path:
    """Append the vectors of all rows that the journal does not know; the complete file."""
    before = state_of(source)
    try:
        sink = make(path, embedder.width, journal.rows, journal.mark)
    except EOFError:  # less is there than the journal says
        journal.forget()
        sink = make(path, embedder.width, 0, 0)

    def encode(rows: list[Row]) -> Tokens:
        return encode_texts(embedder, [row.text for row in rows])

    def commit() -> None:
        journal.mark = sink.mark()
        write_json(path.with_name(JOURNAL), asdict(journal))

    whole, saved = True, time.monotonic()
    try:
        progress("embedding", 0, source.size)
        chunks = chunked(read_rows(source, reading, journal.rows), lambda row: len(row.text))
        ahead = False if source.is_stream else None  # who feeds a stream may wait for its answer
        for rows, vectors in embed_chunks(embedder, chunks, encode, ahead=ahead):
            whole = False
            sink.append([row.text for row in rows], vectors.values)
            journal.note(rows, vectors)
            whole = True
            if time.monotonic() - saved >= PAUSE:
                commit()
                saved = time.monotonic()
            progress("embedding", rows[-1].read, source.size)
        if not journal.rows:
            raise holds_nothing(source.name)
        if state_of(source) != before:
            journal.forget()
            path.with_name(JOURNAL).unlink(missing_ok=True)
            raise InputError(f"{source.name} was changed while it was read; start again.")
        commit()
        return sink.finish()
    except BaseException:
        if whole and journal.rows:
            with suppress(OSError):
                commit()
        raise
    finally:
        sink.close()


def load_journal(folder: Path, plan: dict[str, Any]) -> Journal:
    """The journal of an interrupted run, or a new one."""
    try:
        return Journal(**json.loads((folder / JOURNAL).read_bytes()))
    except (OSError, ValueError, TypeError):
        return Journal(plan)


@contextmanager
def workplace(out: Path, advice: str = "", *, resumes: bool = True) -> Iterator[Path]:
    """The folder in which something is made that will be called `out`, for one process alone.

    Where the same work, begun again, resumes, an interrupt says so.
    """
    folder = out.with_name(out.name + ".partial")
    ours = {LOCK, JOURNAL, out.name}
    if folder.exists() and not folder.is_dir():
        raise Misuse(f"{folder} is in the way; move it, or choose another place.")
    strange = [file.name for file in folder.iterdir()] if folder.exists() else []
    strange = [name for name in strange if name not in ours and not name.startswith((".", "part-"))]
    if strange:
        raise Misuse(f"{folder} exists and is not Firth's; move it, or choose another place.")
    kept = f"What is complete is kept in {folder}: the same command goes on from there."
    with storage_errors(folder, advice or kept):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"writing {folder}"):
            try:
                yield folder
            except BaseException as error:
                if not (folder / JOURNAL).is_file():  # nothing to go on from
                    shutil.rmtree(folder)
                elif isinstance(error, KeyboardInterrupt) and resumes:
                    raise KeyboardInterrupt(kept) from error
                raise
