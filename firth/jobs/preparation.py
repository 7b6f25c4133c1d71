"""Tokenization of raw text into shards, on all cores, in bounded memory, resumable at any time.

Shards are written into `OUT.partial`, together with a journal that records the next document. The
directory gets its final name when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.corpus import (
    START,
    Corpus,
    CorpusPosition,
    CorpusReport,
    DocumentBatch,
    clean_texts,
    no_documents,
)
from firth.data.dedup import digests, find_duplicates, open_fingerprints, signatures
from firth.data.memory import Data
from firth.data.readers import ReadOptions
from firth.data.shards import (
    ARRAYS,
    FORMAT,
    Shards,
    TokenizedDocuments,
    damaged,
    read_index,
    write_shard,
)
from firth.formats.tokenizers.loading import AnyTokenizer, load_tokenizer
from firth.tokenizers.counting import Progress
from firth.tokenizers.encoding import EncodedDocuments, EncodingJob, Flags, make_encoder
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.arguments import check_arguments
from firth.utils.errors import MismatchError, UsageError, storage_errors
from firth.utils.files import locked, sync_directory, write_array, write_json
from firth.utils.notebook import show_progress
from firth.utils.workers import ordered_map

SPLITS = ("train", "valid")
LOCK, JOURNAL = "prepare.lock", "journal.json"
DUPLICATES, FINGERPRINTS = "duplicates.npy", "fingerprints"


@dataclass(frozen=True)
class PrepareResult:
    """The result of `prepare`."""

    path: Path
    report: CorpusReport
    splits: dict[str, dict[str, int]]  # split -> numbers of tokens, documents, sentences, shards
    resumed: bool  # continued an interrupted run
    sources: dict[str, dict[str, int]]  # name of each source -> tokens in each split

    @property
    def notes(self) -> list[str]:
        """The errors of the first bad rows, and their number."""
        return self.report.notes


@dataclass
class PrepareJournal:
    """The state of a run: everything that a new process needs to resume it."""

    plan: dict[str, Any]
    part: int = 0  # index of the current corpus
    position: CorpusPosition = START  # of the next document
    documents: int = 0  # read so far in all corpora
    shards: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    report: CorpusReport = field(default_factory=CorpusReport)

    def save(self, path: Path) -> None:
        write_json(path, {**vars(self), "report": self.report.as_dict()})

    @classmethod
    def load(cls, path: Path) -> PrepareJournal:
        values = json.loads(path.read_bytes())
        values["position"] = CorpusPosition(*values["position"])
        values["report"] = CorpusReport.from_dict(values["report"])
        return cls(**values)


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
    """
    has_valid = not isinstance(valid, Sequence) or len(valid) > 0
    if has_valid and valid_fraction is not None:
        raise UsageError("Give --valid or --valid-fraction, not both.")
    fraction = 0.0 if has_valid else 0.01 if valid_fraction is None else valid_fraction
    if not 0 <= fraction < 1:
        raise UsageError(f"--valid-fraction must be at least 0 and below 1, not {fraction}.")
    reading = reading.updated(column=column, format=format, strict=strict)
    reader = load_tokenizer(tokenizer)
    corpora = {"valid": Corpus(valid, reading, clean=clean)} if has_valid else {}
    corpora["train"] = Corpus(paths, reading, clean=clean)
    _number_sources(corpora)
    streams = [source.name for c in corpora.values() for source in c.sources if source.is_stream]
    if streams and (dedup or len(streams) > len(set(streams))):
        reason = "--dedup reads all text twice, but " if dedup else ""
        raise UsageError(f"{reason}{streams[0]} can be read only once: save it to a file first.")
    plan = _plan(reader, corpora, dedup=dedup, fraction=fraction, shard_tokens=shard_tokens)
    out = Path(os.path.realpath(out))
    if done := _finished(out, plan, comparable=not streams):
        return done
    with _partial_directory(out) as folder:
        journal = PrepareJournal(plan) if streams else _load_journal(folder, plan)
        _remove_incomplete(folder, journal)
        journal.save(folder / JOURNAL)
        resumed = bool(journal.documents)
        flags = _duplicates(folder, corpora, workers, progress) if dedup else None
        make = partial(make_encoder, reader.to_json(), clean, fraction)
        _write_shards(folder, journal, corpora, make, flags, workers, progress)
        if not journal.shards["train"]:
            raise no_documents(corpora["train"], journal.report, journal.shards["valid"])
        reader.save(folder)
        return _finish(folder, out, journal, reader, resumed)


def _plan(reader: Tokenizer, corpora: dict[str, Corpus], **options: Any) -> dict[str, Any]:
    """Everything that determines the content of the shards; resuming needs the same plan."""
    sources = {
        split: [source.state for source in corpus.sources] for split, corpus in corpora.items()
    }
    first = corpora["train"]
    options |= {**asdict(first.reading), "clean": first.clean}
    plan = {"tokenizer": reader.fingerprint, "sources": sources, "options": options}
    if first.source_names:
        plan["source_numbers"] = {split: c.source_numbers for split, c in corpora.items()}
        plan["source_names"] = first.source_names
    return plan


def _number_sources(corpora: dict[str, Corpus]) -> None:
    """Give the sources of the validation text their numbers in the training text."""
    names, valid = corpora["train"].source_names, corpora.get("valid")
    if valid is None:
        return
    if unknown := [name for name in valid.source_names if name not in names]:
        raise UsageError(f"--valid names the source {unknown[0]!r}, which the training text lacks.")
    if names and not valid.source_names:
        raise UsageError(f"Name the source of each --valid, such as --valid {names[0]}=PATH.")
    if names:
        valid.source_numbers = [names.index(valid.source_names[i]) for i in valid.source_numbers]
        valid.source_names = names


def _finished(out: Path, plan: dict[str, Any], comparable: bool) -> PrepareResult | None:
    """Return a finished result of the same plan, if any; never overwrite anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / "index.json").is_file():
        raise UsageError(f"{out} exists and does not contain shards; choose another --out.")
    index = read_index(out)
    if index["plan"] != plan or not comparable:
        same_tokenizer = index["tokenizer"] == plan["tokenizer"]
        other = "other text or with other options" if same_tokenizer else "another tokenizer"
        raise MismatchError(f"{out} has shards of {other}; choose another --out or remove it.")
    _clear(out)
    return _summary(out, index, resumed=False)


@contextmanager
def _partial_directory(out: Path) -> Iterator[Path]:
    """Create and lock the directory of unfinished shards."""
    folder = out.with_name(out.name + ".partial")
    if folder.exists() and not all(_is_own_file(path) for path in folder.iterdir()):
        raise UsageError(f"{folder} has other files; move it, or choose another --out.")
    kept = f"Finished shards are in {folder}: the same command resumes from there."
    with storage_errors(folder, kept):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"writing {folder}"):
            try:
                yield folder
            except BaseException:
                if not any(folder.glob("*.npy")):  # nothing to resume from
                    shutil.rmtree(folder)
                raise


def _is_own_file(path: Path) -> bool:
    """Whether a file in the partial directory was written by `prepare`."""
    known = {LOCK, JOURNAL, FINGERPRINTS, "index.json", "tokenizer.json", "tokenizer_config.json"}
    return path.name in known or path.match("*.npy") or path.match(".*.tmp")


def _load_journal(folder: Path, plan: dict[str, Any]) -> PrepareJournal:
    """Load the journal of an interrupted run with the same plan, or start a new one."""
    path = folder / JOURNAL
    if path.is_file():
        journal = PrepareJournal.load(path)
        entries = [entry for entries in journal.shards.values() for entry in entries]
        if journal.plan == plan and not any(damaged(folder, entry) for entry in entries):
            return journal
    path.unlink(missing_ok=True)
    return PrepareJournal(plan)


def _remove_incomplete(folder: Path, journal: PrepareJournal) -> None:
    """Remove incomplete files of an interrupted run."""
    names = [entry["name"] for entries in journal.shards.values() for entry in entries]
    known = {f"{name}.{key}.npy" for name in names for key in (*ARRAYS, "sources")} | {LOCK}
    known |= {JOURNAL, DUPLICATES} if (folder / JOURNAL).is_file() else set()
    for path in folder.iterdir():
        if path.name == FINGERPRINTS:
            shutil.rmtree(path)
        elif path.name not in known:
            path.unlink()


def _duplicates(
    folder: Path, corpora: dict[str, Corpus], workers: int | None, progress: Progress
) -> Flags:
    """Flag duplicate documents of all corpora; computed once and saved with the journal."""
    path = folder / DUPLICATES
    if not path.is_file():
        scratch = folder / FINGERPRINTS
        with open_fingerprints(scratch) as append:
            for corpus in corpora.values():
                make = partial(_fingerprinter, corpus.clean)
                for exact, near, bytes_read in ordered_map(make, corpus.batches(), workers):
                    append(exact, near)
                    progress("looking for duplicates", bytes_read, corpus.size)
        write_array(path, find_duplicates(scratch))
        shutil.rmtree(scratch)
    flags: Flags = np.load(path, mmap_mode="r", allow_pickle=False)
    return flags


def _fingerprinter(clean: bool) -> Callable[[DocumentBatch], tuple[Any, Any, int]]:
    def fingerprint(batch: DocumentBatch) -> tuple[Any, Any, int]:
        texts = list(clean_texts(batch.texts, clean, CorpusReport()))
        return digests(texts), signatures(texts), batch.bytes_read

    return fingerprint


def _write_shards(
    folder: Path,
    journal: PrepareJournal,
    corpora: dict[str, Corpus],
    make: Callable[[], Callable[[EncodingJob], EncodedDocuments]],
    flags: Flags | None,
    workers: int | None,
    progress: Progress,
) -> None:
    for split, corpus in list(corpora.items())[journal.part :]:
        if journal.position == START:
            journal.report.repaired["files of unknown kind skipped"] += corpus.skipped_files
        pending: dict[str, list[TokenizedDocuments]] = {name: [] for name in SPLITS}
        size = journal.plan["options"]["shard_tokens"]
        for encoded in ordered_map(make, _encoding_jobs(corpus, split, journal, flags), workers):
            for name, passage in encoded.passages.items():
                pending[name].append(passage)
            journal.report.add(encoded.report)
            journal.documents += encoded.documents
            journal.position = encoded.end
            if sum(len(p.tokens) for passages in pending.values() for p in passages) >= size:
                _flush(folder, journal, pending)
            progress("tokenizing", encoded.bytes_read, corpus.size)
        journal.part, journal.position = journal.part + 1, START
        _flush(folder, journal, pending)


def _encoding_jobs(
    corpus: Corpus, split: str, journal: PrepareJournal, flags: Flags | None
) -> Iterator[EncodingJob]:
    read = journal.documents
    # A shard consists of whole batches, so small shards need small batches.
    characters = min(1 << 20, 4 * journal.plan["options"]["shard_tokens"])
    for batch in corpus.batches(journal.position, characters):
        end = read + len(batch.texts)
        yield EncodingJob(batch, split, None if flags is None else flags[read:end])
        read = end


def _flush(
    folder: Path, journal: PrepareJournal, pending: dict[str, list[TokenizedDocuments]]
) -> None:
    """Write pending documents as one shard per split, then save the journal."""
    for split, passages in pending.items():
        if any(len(passage.tokens) for passage in passages):
            name = f"{split}-{len(journal.shards[split]):05}"
            journal.shards[split].append(write_shard(folder, name, passages))
        passages.clear()
    journal.save(folder / JOURNAL)


def _finish(
    folder: Path, out: Path, journal: PrepareJournal, reader: Tokenizer, resumed: bool
) -> PrepareResult:
    """Write the index, rename the directory and remove temporary files."""
    splits = {
        split: {**{key: sum(shard[key] for shard in shards) for key in ARRAYS}, "shards": shards}
        for split, shards in journal.shards.items()
        if shards
    }
    index = {
        "format": FORMAT,
        "tokenizer": reader.fingerprint,
        "vocab_size": len(reader),
        "splits": splits,
        "report": journal.report.as_dict(),
        "plan": journal.plan,
    }
    if names := journal.plan.get("source_names"):
        index["sources"] = names
    write_json(folder / "index.json", index)
    os.rename(folder, out)
    sync_directory(out.parent)
    _clear(out)
    return _summary(out, index, resumed)


def _clear(out: Path) -> None:
    """Remove temporary files."""
    for name in (JOURNAL, DUPLICATES, LOCK):
        (out / name).unlink(missing_ok=True)


def _summary(out: Path, index: dict[str, Any], resumed: bool) -> PrepareResult:
    splits = {
        split: {**{key: values[key] for key in ARRAYS}, "shards": len(values["shards"])}
        for split, values in index["splits"].items()
    }
    tokens = {split: Shards(out, split).source_tokens for split in splits}
    sources = {
        name: {split: tokens[split][name] for split in splits} for name in index.get("sources", ())
    }
    return PrepareResult(out, CorpusReport.from_dict(index["report"]), splits, resumed, sources)
