"""One part of `prepare`: a pure function of the text, the options and the number of the part.

A part holds the tokens of its blocks as shards of its own. With the number of characters and tokens
of every document, `merge_parts` cuts the joined documents where `prepare` without parts does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firth.data.corpus import CorpusReport
from firth.data.corpus_parts import DocumentBlock, Part, PartReader, document_batch, grouped
from firth.data.shards import ARRAYS, TokenizedDocuments
from firth.jobs.part_duplicates import has_duplicates, part_flags, write_signatures
from firth.jobs.part_files import (
    SHARDS,
    BlockRow,
    block_rows,
    new_directory,
    part_path,
    read_manifest,
    write_part_manifest,
)
from firth.jobs.prepare_output import SPLITS, PrepareResult, write_pending
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.counting import Progress
from firth.tokenizers.encoding import EncodingJob, Flags
from firth.utils.bad_rows import MAX_REPORTED
from firth.utils.errors import UsageError
from firth.utils.files import write_array
from firth.utils.workers import ordered_map

DOCUMENTS = "documents.npy"
# Of each document, kept or not: characters as read, tokens, split (0: removed).
DOCUMENT = np.dtype([("characters", "<u4"), ("tokens", "<u4"), ("split", "u1")])


def prepare_part(
    job: PrepareJob, folder: Path, part: Part, workers: int | None, progress: Progress
) -> PrepareResult:
    """Write one part, or with `--dedup` first its signatures; a complete one is left as it is."""
    if job.streams:
        raise UsageError(f"Parts of {job.streams[0]} need a file: save it to one first.")
    if job.dedup and not has_duplicates(folder, job):
        path = write_signatures(job, folder, part, workers, progress)
        return PrepareResult(path, CorpusReport(), {}, False, {}, "signatures")
    path = part_path(folder, SHARDS, part)
    manifest = read_manifest(path, job)
    if manifest is None:
        _write_part(job, folder, part, workers, progress)
        manifest = read_manifest(path, job) or {}
    report = CorpusReport.from_dict(manifest["report"])
    splits = {
        split: {**{key: sum(e[key] for e in entries) for key in ARRAYS}, "shards": len(entries)}
        for split, entries in manifest["shards"].items()
        if entries
    }
    return PrepareResult(path, report, splits, False, {}, "part")


def _write_part(
    job: PrepareJob, folder: Path, part: Part, workers: int | None, progress: Progress
) -> None:
    flags = part_flags(folder, part, job) if job.dedup else None
    reader = PartReader(list(job.corpora.values()), part)
    with new_directory(part_path(folder, SHARDS, part)) as temporary:
        report = CorpusReport()
        shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        pending: dict[str, list[TokenizedDocuments]] = {split: [] for split in SPLITS}
        groups: list[list[DocumentBlock]] = []
        documents = [np.empty(0, DOCUMENT)]
        table: list[BlockRow] = []
        errors: list[list[Any]] = []
        jobs = _encoding_jobs(reader, list(job.corpora), flags, groups)
        for encoded in ordered_map(job.make_encoder, jobs, workers):
            blocks = groups.pop(0)
            documents.append(_document_records(blocks, encoded.lengths, encoded.splits))
            table += block_rows(blocks)
            errors += [[*block.key, error] for block in blocks for error in block.errors]
            errors = errors[:MAX_REPORTED]
            report.add(encoded.report)
            for split, passage in encoded.passages.items():
                pending[split].append(passage)
            tokens = sum(len(p.tokens) for passages in pending.values() for p in passages)
            if tokens >= job.shard_tokens:
                write_pending(temporary, shards, pending)
            progress("tokenizing", encoded.bytes_read, reader.size)
        write_pending(temporary, shards, pending)
        write_array(temporary / DOCUMENTS, np.concatenate(documents))
        found = {"report": report.as_dict(), "errors": errors, "shards": shards}
        write_part_manifest(temporary, job, reader, table, **found)


def _encoding_jobs(
    reader: PartReader, splits: list[str], flags: Flags | None, groups: list[list[DocumentBlock]]
) -> Iterator[EncodingJob]:
    """Yield batches of blocks, and append the blocks of each to `groups`."""
    read = 0
    for blocks in grouped(reader):
        groups.append(blocks)
        batch = document_batch(blocks)
        end = read + len(batch.texts)
        split = splits[blocks[0].place.corpus]
        yield EncodingJob(batch, split, None if flags is None else flags[read:end])
        read = end


def _document_records(
    blocks: list[DocumentBlock], lengths: NDArray[np.int64], splits: NDArray[np.uint8]
) -> NDArray[np.void]:
    records = np.empty(len(lengths), DOCUMENT)
    records["characters"] = [len(text) for block in blocks for text in block.texts]
    records["tokens"], records["split"] = lengths, splits
    return records
