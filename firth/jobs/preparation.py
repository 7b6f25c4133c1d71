"""Tokenization of raw text into shards, on all cores, in bounded memory, resumable at any time.

Shards are written into `OUT.partial`, together with a journal that records the next document. The
directory gets its final name when it is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from firth.data.corpus import START, Corpus
from firth.data.corpus_parts import Part
from firth.data.dedup import find_duplicates, open_fingerprints
from firth.data.memory import Data
from firth.data.readers import ReadOptions
from firth.data.shards import TokenizedDocuments
from firth.formats.tokenizers.loading import AnyTokenizer, load_tokenizer
from firth.jobs.merge_parts import merge_parts
from firth.jobs.output_place import OutputPlace
from firth.jobs.part_duplicates import local_tasks, make_fingerprinter
from firth.jobs.prepare_output import (
    DUPLICATES,
    FINGERPRINTS,
    JOURNAL,
    SPLITS,
    PrepareJournal,
    PrepareResult,
    check_any_documents,
    finish,
    finished,
    flush,
    load_journal,
    partial_directory,
    remove_incomplete,
)
from firth.jobs.prepare_parts import prepare_part
from firth.jobs.prepare_plan import PrepareJob, prepare_job
from firth.jobs.ray_preparation import prepare_with_ray
from firth.tokenizers.counting import Progress
from firth.tokenizers.encoding import EncodingJob, Flags
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.errors import UsageError
from firth.utils.files import write_array
from firth.utils.notebook import show_progress
from firth.utils.ray_tasks import check_engine
from firth.utils.workers import ordered_map


@check_arguments
def prepare(
    paths: Data,
    *,
    tokenizer: AnyTokenizer,
    out: str | Path,
    valid: Data = (),
    valid_fraction: float | None = None,
    dedup: bool = False,
    reading: ReadOptions = ReadOptions(),
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    clean: bool = True,
    shard_tokens: int = 1 << 24,
    engine: str = "local",
    parts: int | None = None,
    part: str | None = None,
    merge: bool = False,
    workers: int | None = None,
    progress: Progress = show_progress,
) -> PrepareResult:
    """Tokenize text into shards for training; an interrupted run is resumed.

    `paths` are files, folders and globs, or in memory a list of texts or rows, or a table with a
    text `column`; `reading` has more options.
    `tokenizer` is a tokenizer directory, or a model with a tokenizer, such as a GGUF file. The
    validation split is `valid`, or a fraction of the documents: `valid_fraction`, by default 0.01.
    `dedup` removes exact and near duplicates of earlier documents; validation text counts as
    earlier than training text. If `paths` maps the names of sources to their files, such as
    `{"en": "en.txt", "ha": "ha.txt"}`, the shards keep the source of every document.
    Bad rows are skipped and noted; with `strict`, they are an error.
    `part="1/8"` prepares the first of eight parts, on any machine, and `merge` joins all of them to
    the shards that a call without parts writes (docs/scaling.md). `engine="ray"` does both on a Ray
    cluster, in `parts` tasks.
    """
    _check_engine(engine, parts, part, merge)
    reader = load_tokenizer(tokenizer)
    job = prepare_job(
        paths,
        valid,
        reader,
        reading.updated(column=column, format=format, strict=strict),
        clean=clean,
        valid_fraction=valid_fraction,
        dedup=dedup,
        shard_tokens=shard_tokens,
    )
    place = OutputPlace.of(out)
    if done := finished(place.finished_copy, job.plan, comparable=not job.streams):
        return replace(done, url=place.url)
    if engine == "ray":
        return prepare_with_ray(job, place, reader, parts, progress)
    if part is not None:
        own = Part.parse(part)
        place.pull_part(own)
        result = prepare_part(job, place.folder, own, workers, progress)
    elif merge:
        place.pull()
        tasks = local_tasks(workers)
        result = merge_parts(job, place.folder, place.out, reader, tasks, progress)
    else:
        result = _prepare_locally(job, reader, place.out, workers, progress)
    return place.push(result)


def _check_engine(engine: str, parts: int | None, part: str | None, merge: bool) -> None:
    check_engine(engine)
    if part is not None and merge:
        raise UsageError("Give --part or --merge, not both.")
    if engine == "ray" and (part is not None or merge):
        raise UsageError("--engine ray makes and joins all parts: leave out --part and --merge.")
    if parts is not None and engine != "ray":
        raise UsageError("--parts is for --engine ray; make a single part with --part 1/N.")


def _prepare_locally(
    job: PrepareJob, reader: Tokenizer, out: Path, workers: int | None, progress: Progress
) -> PrepareResult:
    with partial_directory(out) as folder:
        journal = PrepareJournal(job.plan) if job.streams else load_journal(folder, job.plan)
        remove_incomplete(folder, journal)
        journal.save(folder / JOURNAL)
        resumed = bool(journal.documents)
        flags = _duplicates(folder, job.corpora, workers, progress) if job.dedup else None
        _write_shards(folder, journal, job, flags, workers, progress)
        check_any_documents(job, journal)
        return finish(folder, out, journal, reader, resumed)


def _duplicates(
    folder: Path, corpora: dict[str, Corpus], workers: int | None, progress: Progress
) -> Flags:
    """Flag duplicate documents of all corpora; computed once and saved with the journal."""
    path = folder / DUPLICATES
    if not path.is_file():
        scratch = folder / FINGERPRINTS
        with open_fingerprints(scratch) as append:
            for corpus in corpora.values():
                make = partial(make_fingerprinter, corpus.clean)
                for exact, near, bytes_read in ordered_map(make, corpus.batches(), workers):
                    append(exact, near)
                    progress("looking for duplicates", bytes_read, corpus.size)
        write_array(path, find_duplicates(scratch))
        shutil.rmtree(scratch)
    flags: Flags = np.load(path, mmap_mode="r", allow_pickle=False)
    return flags


def _write_shards(
    folder: Path,
    journal: PrepareJournal,
    job: PrepareJob,
    flags: Flags | None,
    workers: int | None,
    progress: Progress,
) -> None:
    for split, corpus in list(job.corpora.items())[journal.part :]:
        if journal.position == START:
            journal.report.repaired["files of unknown kind skipped"] += corpus.skipped_files
        pending: dict[str, list[TokenizedDocuments]] = {name: [] for name in SPLITS}
        jobs = _encoding_jobs(corpus, split, journal, flags, job.batch_characters)
        for encoded in ordered_map(job.make_encoder, jobs, workers):
            for name, passage in encoded.passages.items():
                pending[name].append(passage)
            journal.report.add(encoded.report)
            journal.documents += encoded.documents
            journal.position = encoded.end
            tokens = sum(len(p.tokens) for passages in pending.values() for p in passages)
            if tokens >= job.shard_tokens:
                flush(folder, journal, pending)
            progress("tokenizing", encoded.bytes_read, corpus.size)
        journal.part, journal.position = journal.part + 1, START
        flush(folder, journal, pending)


def _encoding_jobs(
    corpus: Corpus,
    split: str,
    journal: PrepareJournal,
    flags: Flags | None,
    characters: int,
) -> Iterator[EncodingJob]:
    read = journal.documents
    for batch in corpus.batches(journal.position, characters):
        end = read + len(batch.texts)
        yield EncodingJob(batch, split, None if flags is None else flags[read:end])
        read = end
