"""Join parts to shards: the bytes that `prepare` without parts writes.

`prepare` reads documents in batches, and ends a shard after the batch that fills it. Parts hold no
batches, because a batch may cross files; their ends follow from the documents' characters.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firth.data.corpus import CorpusReport
from firth.data.shards import TokenizedDocuments, open_shard
from firth.jobs.part_duplicates import TaskMap, exchange_signatures, has_duplicates
from firth.jobs.part_files import DUPLICATES, SHARDS, all_blocks, find_parts
from firth.jobs.prepare_output import (
    SPLITS,
    PrepareJournal,
    PrepareResult,
    check_any_documents,
    finish,
    partial_directory,
    remove_incomplete,
    write_pending,
)
from firth.jobs.prepare_parts import DOCUMENTS
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.counting import Progress
from firth.tokenizers.encoding import TRAIN, VALID
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.bad_rows import MAX_REPORTED

CODES = {"train": TRAIN, "valid": VALID}


def merge_parts(
    job: PrepareJob, folder: Path, out: Path, reader: Tokenizer, run: TaskMap, progress: Progress
) -> PrepareResult:
    """Join all parts to shards, or with `--dedup` first find duplicates; then remove the parts."""
    if job.dedup and not has_duplicates(folder, job):
        exchange_signatures(job, folder, run)
        path = folder / DUPLICATES
        return PrepareResult(path, CorpusReport(), {}, False, {}, "duplicates")
    parts = find_parts(folder, SHARDS, job)
    with partial_directory(out, resumes=False) as partial:
        journal = PrepareJournal(job.plan, report=_joined_report(job, parts))
        remove_incomplete(partial, journal)
        _ShardWriter(job, partial, journal, parts).write(progress)
        check_any_documents(job, journal)
        result = finish(partial, out, journal, reader, resumed=False)
    shutil.rmtree(folder)
    return result


def _joined_report(job: PrepareJob, parts: list[tuple[Path, dict[str, Any]]]) -> CorpusReport:
    joined = CorpusReport()
    for corpus in job.corpora.values():
        joined.repaired["files of unknown kind skipped"] += corpus.skipped_files
    for _, manifest in parts:
        joined.add(CorpusReport.from_dict(manifest["report"]))
    errors = sorted((error for _, part in parts for error in part["errors"]), key=lambda e: e[:3])
    joined.errors = [error for *_, error in errors[:MAX_REPORTED]]
    return joined


class _ShardWriter:
    """Write the documents of all parts in reading order as shards."""

    def __init__(
        self,
        job: PrepareJob,
        out: Path,
        journal: PrepareJournal,
        parts: list[tuple[Path, dict[str, Any]]],
    ) -> None:
        self.job = job
        self.out = out
        self.shards = journal.shards
        self.blocks = all_blocks(parts)
        self.parts = [_PartCursor(path, manifest["shards"]) for path, manifest in parts]
        self.pending: dict[str, list[TokenizedDocuments]] = {split: [] for split in SPLITS}
        self.tokens = 0  # pending
        self.characters = 0  # of the current batch

    def write(self, progress: Progress) -> None:
        """Write the shards of all corpora."""
        corpora = list(self.job.corpora.values())
        group = (0, 0)
        for done, (corpus, file, _, documents, part) in enumerate(self.blocks.tolist(), 1):
            here = (corpus, corpora[corpus].source_numbers[file])
            if here != group:
                self._end_batch(flush=here[0] != group[0])
                group = here
            self._add(self.parts[part], documents)
            progress("joining parts", done, len(self.blocks))
        self._end_batch(flush=True)

    def _add(self, part: _PartCursor, documents: int) -> None:
        """Add the next documents of a part, and end each batch that is full."""
        records = part.records(documents)
        start = 0
        for end in self._batch_ends(records["characters"]):
            self._append(part, records[start:end])
            self._end_batch()
            start = end
        self._append(part, records[start:])
        self.characters += int(records["characters"][start:].sum(dtype=np.int64))

    def _batch_ends(self, characters: NDArray[np.uint32]) -> Iterator[int]:
        total = np.cumsum(characters, dtype=np.int64)
        before = -self.characters
        while True:
            end = int(np.searchsorted(total, before + self.job.batch_characters))
            if end == len(total):
                return
            yield end + 1
            before = int(total[end])

    def _append(self, part: _PartCursor, records: NDArray[np.void]) -> None:
        for split, code in CODES.items():
            with_tokens = (records["split"] == code) & (records["tokens"] > 0)
            self.pending[split] += part.documents(split, int(with_tokens.sum()))
        self.tokens += int(records["tokens"].sum(dtype=np.int64))

    def _end_batch(self, flush: bool = False) -> None:
        self.characters = 0
        if flush or self.tokens >= self.job.shard_tokens:
            write_pending(self.out, self.shards, self.pending)
            self.tokens = 0


class _PartCursor:
    """Read the documents of a part from the first to the last."""

    def __init__(self, path: Path, shards: dict[str, list[dict[str, Any]]]) -> None:
        self._records = np.load(path / DOCUMENTS, mmap_mode="r", allow_pickle=False)
        self._read = 0
        self._splits = {split: _SplitCursor(path, entries) for split, entries in shards.items()}

    def records(self, count: int) -> NDArray[np.void]:
        """Return the records of the next documents, kept or not."""
        self._read += count
        return np.asarray(self._records[self._read - count : self._read])

    def documents(self, split: str, count: int) -> Iterator[TokenizedDocuments]:
        """Return the next documents of a split that have tokens."""
        return self._splits[split].take(count)


class _SplitCursor:
    """Read the documents of the shards of one split of a part."""

    def __init__(self, path: Path, entries: list[dict[str, Any]]) -> None:
        self._shards = (open_shard(path, entry) for entry in entries)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._document = self._sentence = 0  # next of the open shard

    def take(self, count: int) -> Iterator[TokenizedDocuments]:
        """Yield the next documents, in one piece from each shard."""
        while count:
            self._arrays = self._arrays or next(self._shards)
            first = self._document
            starts, bounds = self._arrays["documents"], self._arrays["sentences"]
            last = min(first + count, len(starts) - 1)
            sentence = int(np.searchsorted(bounds, starts[last]))
            sources = self._arrays.get("sources")
            yield TokenizedDocuments(
                self._arrays["tokens"][starts[first] : starts[last]],
                np.diff(starts[first : last + 1]),
                np.diff(bounds[self._sentence : sentence + 1]),
                None if sources is None else sources[first:last],
            )
            count -= last - first
            self._document, self._sentence = last, sentence
            if last == len(starts) - 1:
                self._arrays, self._document, self._sentence = {}, 0, 0
