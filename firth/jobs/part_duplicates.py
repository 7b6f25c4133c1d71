"""Duplicates among the documents of all parts: the decisions of `find_duplicates`.

1. Each part writes the signatures of its documents, one file for each band.
2. The exchange joins the files of each band in reading order, and searches the documents that agree
   in a band, one band per task. The first document in reading order is kept.
3. Each part reads the verdicts for its own documents while it tokenizes them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from firth.data.corpus import CorpusReport, DocumentBatch, clean_texts
from firth.data.corpus_parts import DocumentBlock, Part, PartReader, document_batch, grouped
from firth.data.dedup import (
    BANDS,
    NEAR,
    digests,
    find_exact_duplicates,
    fingerprint_paths,
    near_duplicates_in_band,
    open_fingerprints,
    signatures,
)
from firth.jobs.part_files import (
    DUPLICATES,
    SIGNATURES,
    BlockRow,
    all_blocks,
    block_rows,
    find_parts,
    new_directory,
    part_path,
    read_manifest,
    write_manifest,
    write_part_manifest,
)
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.counting import Progress
from firth.tokenizers.encoding import Flags
from firth.utils.errors import MismatchError
from firth.utils.files import write_array
from firth.utils.workers import ordered_map

Item = TypeVar("Item")
Result = TypeVar("Result")
EXACT = "exact.npy"  # verdicts of the exact search


class TaskMap(Protocol):
    """Apply a function to items on several processes or machines."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results in the order of the items."""
        ...


def local_tasks(workers: int | None) -> TaskMap:
    """Return a map over worker processes of this machine."""

    def run(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        return list(ordered_map(partial(partial, function), items, workers))

    return run


def make_fingerprinter(clean: bool) -> Callable[[DocumentBatch], tuple[Any, Any, int]]:
    """Return a function that computes digests and signatures of a batch of documents."""

    def fingerprint(batch: DocumentBatch) -> tuple[Any, Any, int]:
        texts = list(clean_texts(batch.texts, clean, CorpusReport()))
        return digests(texts), signatures(texts), batch.bytes_read

    return fingerprint


def write_signatures(
    job: PrepareJob, folder: Path, part: Part, workers: int | None, progress: Progress
) -> Path:
    """Write digests and signatures of the documents of a part; return their directory."""
    target = part_path(folder, SIGNATURES, part)
    if read_manifest(target, job) is not None:
        return target
    reader = PartReader(list(job.corpora.values()), part)
    table: list[BlockRow] = []
    make = partial(make_fingerprinter, job.corpora["train"].clean)
    with new_directory(target) as temporary:
        with open_fingerprints(temporary) as append:
            batches = (_logged(blocks, table) for blocks in grouped(reader))
            for exact, near, bytes_read in ordered_map(make, batches, workers):
                append(exact, near)
                progress("looking for duplicates", bytes_read, reader.size)
        write_part_manifest(temporary, job, reader, table)
    return target


def _logged(blocks: list[DocumentBlock], table: list[BlockRow]) -> DocumentBatch:
    table += block_rows(blocks)
    return document_batch(blocks)


def has_duplicates(folder: Path, job: PrepareJob) -> bool:
    """Return whether the duplicates among the documents of all parts are known."""
    return read_manifest(folder / DUPLICATES, job) is not None


def part_flags(folder: Path, part: Part, job: PrepareJob) -> Flags:
    """Return the verdict for each document of a part, in the order in which it reads them."""
    manifest = read_manifest(folder / DUPLICATES, job) or {}
    if manifest["parts"] != part.count:
        count = manifest["parts"]
        raise MismatchError(f"The signatures are those of {count} parts: use --part N/{count}.")
    path = folder / DUPLICATES / f"{part.name}.npy"
    flags: Flags = np.load(path, mmap_mode="r", allow_pickle=False)
    return flags


def exchange_signatures(job: PrepareJob, folder: Path, run: TaskMap) -> int:
    """Find the duplicates among all documents from the signatures of all parts; count them."""
    parts = find_parts(folder, SIGNATURES, job)
    blocks = all_blocks(parts)
    with new_directory(folder / DUPLICATES) as temporary:
        scratch = temporary / "joined"
        scratch.mkdir()
        names = [path.name for path in fingerprint_paths(scratch)]
        run(partial(_join_column, [path for path, _ in parts], blocks, scratch), names)
        verdicts = find_exact_duplicates(scratch)
        write_array(scratch / EXACT, verdicts)
        for rows in run(partial(_search_band, scratch), range(BANDS)):
            verdicts[rows] = NEAR
        shutil.rmtree(scratch)
        for number, flags in enumerate(_by_part(verdicts, blocks, len(parts)), 1):
            write_array(temporary / f"{Part(number, len(parts)).name}.npy", flags)
        write_manifest(temporary, job, parts=len(parts))
    return int(np.count_nonzero(verdicts))


def _join_column(parts: list[Path], blocks: NDArray[np.int64], scratch: Path, name: str) -> None:
    """Write the numbers of all documents for one band, in reading order."""
    columns = [np.fromfile(path / name, np.uint64) for path in parts]
    starts = [0] * len(parts)
    with open(scratch / name, "wb") as file:
        for *_, documents, part in blocks.tolist():
            end = starts[part] + documents
            file.write(columns[part][starts[part] : end].tobytes())
            starts[part] = end


def _search_band(scratch: Path, band: int) -> NDArray[np.int64]:
    exact = np.load(scratch / EXACT, allow_pickle=False)
    return near_duplicates_in_band(scratch, band, exact)


def _by_part(verdicts: Flags, blocks: NDArray[np.int64], parts: int) -> list[Flags]:
    """Divide the verdicts of all documents among the parts that read them."""
    owners = np.repeat(blocks[:, 4], blocks[:, 3])
    return [verdicts[owners == part] for part in range(parts)]
