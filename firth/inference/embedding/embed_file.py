"""Embed a file of texts into a file of vectors, resumable, with one batch in memory.

Vectors are written to the folder `OUT.partial`, with a journal that counts the complete rows. The
partial file is readable at any time, and is moved to its final place when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from firth.data.input_files import InputFile, single_input_file
from firth.data.memory import Source
from firth.data.readers import Bad, BlankLine, ReadOptions
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.vector_files import VectorWriter, writer_for
from firth.inference.embedding.vectors import (
    TextVectors,
    TokenizedTexts,
    chunked,
    embed_chunks,
    encode_texts,
)
from firth.tokenizers.counting import Progress
from firth.training.distributed.ranks import current_ranks, of_main_rank
from firth.utils.bad_rows import AS_NAN, AS_NULL, MAX_REPORTED, bad_row_notes, raise_error
from firth.utils.errors import InputError, MismatchError, UsageError, storage_errors
from firth.utils.files import locked, sync_directory, write_json
from firth.utils.notebook import show_progress
from firth.utils.outputs import check_output
from firth.utils.streams import empty_file_error, interleave_errors

LOCK, JOURNAL = "embed.lock", "journal.json"
COMMIT_INTERVAL = 1.0  # minimum seconds between two journal entries

MakeWriter = Callable[[Path, int, int, int], VectorWriter]


class TextRow(NamedTuple):
    """One text of a file."""

    text: str | None  # None: a bad row or a blank line
    error: str  # of a bad row
    bytes_read: int  # of the file so far; 0 if unknown


@dataclass
class EmbeddingJournal:
    """Progress of an embedding run, and the problems it found."""

    plan: dict[str, Any]
    rows: int = 0
    mark: int = 0  # position of the writer
    tokens: int = 0
    # For each kind of problem, the number of rows and the first of them, counted from 1.
    faults: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)  # of the first bad rows

    def add(self, rows: list[TextRow], vectors: TextVectors) -> None:
        """Add rows and their problems."""
        has_text = np.array([row.text is not None for row in rows])
        bad = np.array([bool(row.error) for row in rows])
        found = {
            "bad": bad,
            "cut": vectors.cut & has_text,
            "not_finite": ~vectors.finite & has_text,
        }
        self.errors = [*self.errors, *(row.error for row in rows if row.error)][:MAX_REPORTED]
        for fault, where in found.items():
            if where.any():
                first = self.rows + 1 + int(where.argmax())
                known = self.faults.setdefault(fault, {"count": 0, "first": first})
                known["count"] += int(where.sum())
        self.rows += len(rows)
        self.tokens += vectors.tokens

    @property
    def bad_rows(self) -> int:
        """The number of bad rows."""
        return self.faults.get("bad", {}).get("count", 0)

    def reset(self) -> None:
        """Start again from the first row."""
        self.rows = self.mark = self.tokens = 0
        self.faults, self.errors = {}, []


@dataclass(frozen=True)
class EmbeddedFile:
    """The result of `embed_file`."""

    out: Path
    rows: int
    dimension: int
    precision: str  # of matrix products: fp32, bf16 or fp16
    tokens: int
    faults: dict[str, dict[str, int]]
    resumed: int  # rows taken over from an interrupted run
    seconds: float
    notes: list[str] = field(default_factory=list)  # on bad rows


def embed_file(
    embedder: Embedder,
    source: Source,
    out: str | Path,
    *,
    overwrite: bool = False,
    reading: ReadOptions = ReadOptions(),
    progress: Progress = show_progress,
) -> EmbeddedFile:
    """Write one vector per row of a file; an interrupted run is resumed.

    A row is a line of a text file, including empty ones, or a row of a table. `out` ends in .npy,
    .jsonl or .parquet; the last two also contain the texts. A bad row is null there, NaN in .npy;
    with `reading.strict`, it is an error.
    """
    started, out, reading = time.monotonic(), Path(out), replace(reading, documents="row")
    make_writer = writer_for(out)
    check_output(out, overwrite)
    rows = single_input_file(source, reading)
    if reading.strict and not rows.is_stream:
        deque(read_rows(rows, reading), maxlen=0)  # a bad row raises before anything is written
    plan = {
        **embedding_plan(embedder, rows, reading),
        "out": out.suffix,
        "source": rows.state,
    }
    if not current_ranks().is_main:  # rank 0 writes the file; the others compute their part
        for _ in _embed_rows(embedder, rows, reading, of_main_rank(None)):
            pass
        return EmbeddedFile(out, 0, embedder.dimension, embedder.precision, 0, {}, 0, 0.0)
    with partial_folder(out, resumes=not rows.is_stream) as folder:
        journal = load_journal(folder, plan)
        if journal.plan != plan:
            raise MismatchError(
                f"{folder} contains an interrupted run of another model or file, or with other "
                "options; remove it, or choose another --out."
            )
        if rows.is_stream:  # cannot be read again from the start
            journal.reset()
        resumed = journal.rows
        complete = write_rows(
            embedder, rows, reading, folder / out.name, make_writer, journal, progress
        )
        os.replace(complete, out)
        sync_directory(out.parent)
        shutil.rmtree(folder)
    return EmbeddedFile(
        out=out,
        rows=journal.rows,
        dimension=embedder.dimension,
        precision=embedder.precision,
        tokens=journal.tokens,
        faults=journal.faults,
        resumed=resumed,
        seconds=time.monotonic() - started,
        notes=bad_row_notes(
            journal.bad_rows, journal.errors, AS_NAN if out.suffix == ".npy" else AS_NULL
        ),
    )


def embedding_plan(embedder: Embedder, source: InputFile, reading: ReadOptions) -> dict[str, Any]:
    """Return what determines the vectors of a file, to compare with an interrupted run."""
    read = [source.format, source.compression, reading.column, reading.strict]
    return {"model": embedder.fingerprint, "batch": embedder.tokens_per_batch, "reading": read}


def read_rows(source: InputFile, reading: ReadOptions, skip: int = 0) -> Iterator[TextRow]:
    """Read the rows of a file, without the first `skip`.

    Blank lines of plain text are bad rows if `reading` takes each line as a row; otherwise they
    are neither texts nor errors, but count, so that rows have the numbers of their lines.
    """
    by_row = replace(reading, documents="row")

    def is_error(error: InputError) -> bool:
        return reading.documents == "row" or not isinstance(error, BlankLine)

    with source.open() as raw:

        def read(report: Bad) -> Iterator[str]:
            def bad(error: InputError) -> None:
                (raise_error if reading.strict and is_error(error) else report)(error)

            return source.documents(raw, by_row, Counter(), bad)

        for row in islice(interleave_errors(read), skip, None):
            position = raw.tell() if source.size else 0
            if isinstance(row, InputError):
                yield TextRow(None, str(row) if is_error(row) else "", position)
            else:
                yield TextRow(row, "", position)


def write_rows(
    embedder: Embedder,
    source: InputFile,
    reading: ReadOptions,
    path: Path,
    make_writer: MakeWriter,
    journal: EmbeddingJournal,
    progress: Progress,
) -> Path:
    """Append the vectors of all rows after those in the journal; return the complete file."""
    before = source.state
    try:
        writer = make_writer(path, embedder.dimension, journal.rows, journal.mark)
    except EOFError:  # the file is shorter than the journal says
        journal.reset()
        writer = make_writer(path, embedder.dimension, 0, 0)

    def commit() -> None:
        journal.mark = writer.mark()
        write_json(path.with_name(JOURNAL), asdict(journal))

    consistent, saved = True, time.monotonic()
    try:
        progress("embedding", 0, source.size)
        skip = of_main_rank(journal.rows)
        for rows, vectors in _embed_rows(embedder, source, reading, skip):
            consistent = False
            vectors.values[[row.text is None for row in rows]] = np.nan
            writer.append([row.text for row in rows], vectors.values)
            journal.add(rows, vectors)
            consistent = True
            if time.monotonic() - saved >= COMMIT_INTERVAL:
                commit()
                saved = time.monotonic()
            progress("embedding", rows[-1].bytes_read, source.size)
        if not journal.rows:
            raise empty_file_error(source.name)
        if source.state != before:
            journal.reset()
            path.with_name(JOURNAL).unlink(missing_ok=True)
            raise InputError(f"{source.name} changed while it was read; start again.")
        commit()
        return writer.finish()
    except BaseException:
        if consistent and journal.rows:
            with suppress(OSError):
                commit()
        raise
    finally:
        writer.close()


def _embed_rows(
    embedder: Embedder, source: InputFile, reading: ReadOptions, skip: int
) -> Iterator[tuple[list[TextRow], TextVectors]]:
    """Yield chunks of rows, without the first `skip`, and their vectors."""

    def encode(rows: list[TextRow]) -> TokenizedTexts:
        return encode_texts(embedder, [row.text or "" for row in rows])

    chunks = chunked(read_rows(source, reading, skip), lambda row: len(row.text or ""))
    prefetch = False if source.is_stream else None  # a pipe may wait for each result
    return embed_chunks(embedder, chunks, encode, prefetch=prefetch)


def load_journal(folder: Path, plan: dict[str, Any]) -> EmbeddingJournal:
    """Load the journal of an interrupted run, or create one."""
    try:
        return EmbeddingJournal(**json.loads((folder / JOURNAL).read_bytes()))
    except (OSError, ValueError, TypeError):
        return EmbeddingJournal(plan)


@contextmanager
def partial_folder(out: Path, advice: str = "", *, resumes: bool = True) -> Iterator[Path]:
    """Create and lock the folder for the partial file of `out`.

    If a new run can resume, a KeyboardInterrupt says so.
    """
    folder = out.with_name(out.name + ".partial")
    own_files = {LOCK, JOURNAL, out.name}
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder; move it, or choose another path.")
    names = [file.name for file in folder.iterdir()] if folder.exists() else []
    if any(name not in own_files and not name.startswith((".", "part-")) for name in names):
        raise UsageError(f"{folder} has files of another program; move it, or choose another path.")
    hint = f"The complete rows are in {folder}: the same command resumes from there."
    with storage_errors(folder, *([advice] * 2 if advice else [hint])):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"writing {folder}"):
            try:
                yield folder
            except BaseException as error:
                if not (folder / JOURNAL).is_file():  # nothing to resume from
                    shutil.rmtree(folder)
                elif isinstance(error, KeyboardInterrupt) and resumes:
                    raise KeyboardInterrupt(hint) from error
                raise
