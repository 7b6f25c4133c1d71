"""Raw text to shards, on all cores, in bounded memory; interrupted at any moment, it goes on.

Everything is written into `OUT.partial`, a shard at a time, with a journal beside it that says
which document comes next. The directory gets its final name when it is complete.
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

from firth.errors import MismatchError, Misuse, storage_errors
from firth.files import locked, sync_directory, write_array, write_json
from firth.text.corpus import START, Batch, Corpus, Position, Report, cleaned, no_documents
from firth.text.counting import Progress
from firth.text.dedup import digests, find_duplicates, open_fingerprints, signatures
from firth.text.encoding import Encoded, Flags, Work, encoder
from firth.text.model_tokenizer import model_tokenizer
from firth.text.readers import Reading, Source
from firth.text.shards import ARRAYS, FORMAT, Passage, damaged, read_index, write_shard
from firth.text.tokenizer import Tokenizer
from firth.workers import ordered_map

SPLITS = ("train", "valid")
LOCK, JOURNAL = "prepare.lock", "journal.json"
DUPLICATES, FINGERPRINTS = "duplicates.npy", "fingerprints"


@dataclass(frozen=True)
class Prepared:
    """What `prepare` made."""

    path: Path
    report: Report
    splits: dict[str, dict[str, int]]  # tokens, documents, sentences and shards of each
    resumed: bool  # an interrupted run was continued


@dataclass
class Journal:
    """How far the work has come: everything a new process needs to go on."""

    plan: dict[str, Any]
    part: int = 0  # of the corpora, which one is being read
    position: Position = START  # the next document there
    documents: int = 0  # read so far, of all corpora
    shards: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {s: [] for s in SPLITS})
    report: Report = field(default_factory=Report)

    def save(self, path: Path) -> None:
        write_json(path, {**vars(self), "report": self.report.as_dict()})

    @classmethod
    def load(cls, path: Path) -> Journal:
        values = json.loads(path.read_bytes())
        position, report = Position(*values["position"]), Report.from_dict(values["report"])
        return cls(**{**values, "position": position, "report": report})


def prepare(
    paths: Sequence[str | Path],
    *,
    tokenizer: str | Path,
    out: str | Path,
    valid: Sequence[str | Path] = (),
    valid_fraction: float | None = None,
    dedup: bool = False,
    reading: Reading = Reading(),
    clean: bool = True,
    shard_tokens: int = 1 << 24,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Prepared:
    """Tokenise text into shards that training reads; started again, it continues where it stopped.

    `tokenizer` is the directory of one, or any model that has one, such as a GGUF file.
    The validation part is `valid`, or a share of the documents: `valid_fraction`, or 0.01. With
    `dedup`, a document that repeats an earlier one, exactly or nearly, is left out; validation text
    counts as earlier than all training text.
    """
    if valid and valid_fraction is not None:
        raise Misuse("Give --valid or --valid-fraction, not both.")
    fraction = 0.0 if valid else 0.01 if valid_fraction is None else valid_fraction
    if not 0 <= fraction < 1:
        raise Misuse(f"--valid-fraction is a share from 0 to below 1, not {fraction}.")
    reader = model_tokenizer(tokenizer)
    corpora = {"valid": Corpus(valid, reading, clean=clean)} if valid else {}
    corpora["train"] = Corpus(paths, reading, clean=clean)
    streams = [source.name for c in corpora.values() for source in c.sources if source.is_stream]
    if streams and (dedup or len(streams) > len(set(streams))):
        twice = "--dedup reads all text twice, but " if dedup else ""
        raise Misuse(
            f"{twice}{streams[0]} can be read only once: save what comes from it to a file first."
        )
    plan = _plan(reader, corpora, dedup=dedup, fraction=fraction, shard_tokens=shard_tokens)
    out = Path(os.path.realpath(out))
    if done := _finished(out, plan, comparable=not streams):
        return done
    with _partial_directory(out) as folder:
        journal = Journal(plan) if streams else _load_journal(folder, plan)
        _sweep(folder, journal)
        journal.save(folder / JOURNAL)
        resumed = bool(journal.documents)
        flags = _duplicates(folder, corpora, workers, progress) if dedup else None
        make = partial(encoder, reader.to_json(), clean, fraction)
        _write_shards(folder, journal, corpora, make, flags, workers, progress)
        if not journal.shards["train"]:
            raise no_documents(corpora["train"], journal.report, journal.shards["valid"])
        reader.save(folder)
        return _finish(folder, out, journal, reader, resumed)


def _plan(reader: Tokenizer, corpora: dict[str, Corpus], **options: Any) -> dict[str, Any]:
    """All that decides what the shards will hold: a journal of another plan is of no use."""
    sources = {
        split: [_identity(source) for source in corpus.sources] for split, corpus in corpora.items()
    }
    first = corpora["train"]
    options |= {**asdict(first.reading), "clean": first.clean}
    return {"tokenizer": reader.fingerprint, "sources": sources, "options": options}


def _identity(source: Source) -> list[Any]:
    if not os.path.isfile(source.name):
        return [source.format, source.name]
    status = os.stat(source.name)
    return [os.path.abspath(source.name), status.st_size, status.st_mtime_ns]


def _finished(out: Path, plan: dict[str, Any], comparable: bool) -> Prepared | None:
    """What lies under the final name, if it is just what is asked for; anything else stays safe."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not (out / "index.json").is_file():
        raise Misuse(f"{out} exists and holds something else than shards; choose another --out.")
    index = read_index(out)
    if index["tokenizer"] != plan["tokenizer"]:
        raise MismatchError(
            f"{out} holds shards made with another tokenizer; choose another --out or remove it."
        )
    if index["plan"] != plan or not comparable:
        raise MismatchError(
            f"{out} holds shards of other text or with other options; "
            "choose another --out or remove it."
        )
    _clear(out)
    return _summary(out, index, resumed=False)


@contextmanager
def _partial_directory(out: Path) -> Iterator[Path]:
    """The directory the work happens in, for one process alone."""
    folder = out.with_name(out.name + ".partial")
    if folder.exists() and not all(_is_ours(path) for path in folder.iterdir()):
        raise Misuse(f"{folder} exists and is not Firth's; move it, or choose another --out.")
    kept = f"What is complete is kept in {folder}: the same command goes on from there."
    with storage_errors(folder, kept):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"writing {folder}"):
            try:
                yield folder
            except BaseException:
                if not any(folder.glob("*.npy")):  # nothing to go on from
                    shutil.rmtree(folder)
                raise


def _is_ours(path: Path) -> bool:
    """Whether a name in a partial directory is one that this job writes."""
    known = {LOCK, JOURNAL, FINGERPRINTS, "index.json", "tokenizer.json", "tokenizer_config.json"}
    name = path.name
    return (
        name in known or name.endswith(".npy") or (name.startswith(".") and name.endswith(".tmp"))
    )


def _load_journal(folder: Path, plan: dict[str, Any]) -> Journal:
    """The journal of an interrupted run of this very plan, or a new one in an empty folder."""
    path = folder / JOURNAL
    if path.is_file():
        journal = Journal.load(path)
        entries = [entry for entries in journal.shards.values() for entry in entries]
        if journal.plan == plan and not any(damaged(folder, entry) for entry in entries):
            return journal
    path.unlink(missing_ok=True)
    return Journal(plan)


def _sweep(folder: Path, journal: Journal) -> None:
    """Remove what an interrupted run left half done."""
    names = [entry["name"] for entries in journal.shards.values() for entry in entries]
    known = {f"{name}.{key}.npy" for name in names for key in ARRAYS} | {LOCK}
    known |= {JOURNAL, DUPLICATES} if (folder / JOURNAL).is_file() else set()
    for path in folder.iterdir():
        if path.name == FINGERPRINTS:
            shutil.rmtree(path)
        elif path.name not in known:
            path.unlink()


def _duplicates(
    folder: Path, corpora: dict[str, Corpus], workers: int | None, progress: Progress
) -> Flags:
    """A flag for every document of all corpora, found once and kept beside the journal."""
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


def _fingerprinter(clean: bool) -> Callable[[Batch], tuple[Any, Any, int]]:
    def fingerprint(batch: Batch) -> tuple[Any, Any, int]:
        texts = list(cleaned(batch.texts, clean, Report()))
        return digests(texts), signatures(texts), batch.bytes_read

    return fingerprint


def _write_shards(
    folder: Path,
    journal: Journal,
    corpora: dict[str, Corpus],
    make: Callable[[], Callable[[Work], Encoded]],
    flags: Flags | None,
    workers: int | None,
    progress: Progress,
) -> None:
    for split, corpus in list(corpora.items())[journal.part :]:
        if journal.position == START:
            journal.report.repaired["files of unknown kind skipped"] += corpus.skipped_files
        pending: dict[str, list[Passage]] = {name: [] for name in SPLITS}
        size = journal.plan["options"]["shard_tokens"]
        for encoded in ordered_map(make, _work(corpus, split, journal, flags), workers):
            for name, passage in encoded.passages.items():
                pending[name].append(passage)
            journal.report.add(encoded.report)
            journal.documents += encoded.documents
            journal.position = encoded.end
            if sum(len(p.tokens) for passages in pending.values() for p in passages) >= size:
                _flush(folder, journal, pending)
            progress("tokenising", encoded.bytes_read, corpus.size)
        journal.part, journal.position = journal.part + 1, START
        _flush(folder, journal, pending)


def _work(corpus: Corpus, split: str, journal: Journal, flags: Flags | None) -> Iterator[Work]:
    read = journal.documents
    # A shard is made of whole batches: small shards need small ones.
    characters = min(1 << 20, 4 * journal.plan["options"]["shard_tokens"])
    for batch in corpus.batches(journal.position, characters):
        end = read + len(batch.texts)
        yield Work(batch, split, None if flags is None else flags[read:end])
        read = end


def _flush(folder: Path, journal: Journal, pending: dict[str, list[Passage]]) -> None:
    """Write what is pending as a shard of each split, then say so in the journal."""
    for split, passages in pending.items():
        if any(len(passage.tokens) for passage in passages):
            name = f"{split}-{len(journal.shards[split]):05}"
            journal.shards[split].append(write_shard(folder, name, passages))
        passages.clear()
    journal.save(folder / JOURNAL)


def _finish(
    folder: Path, out: Path, journal: Journal, reader: Tokenizer, resumed: bool
) -> Prepared:
    """Write the index, remove what only the work needed, and give the directory its name."""
    splits = {split: _totals(shards) for split, shards in journal.shards.items() if shards}
    index = {
        "format": FORMAT,
        "tokenizer": reader.fingerprint,
        "vocab_size": len(reader),
        "splits": splits,
        "report": journal.report.as_dict(),
        "plan": journal.plan,
    }
    write_json(folder / "index.json", index)
    os.rename(folder, out)
    sync_directory(out.parent)
    _clear(out)
    return _summary(out, index, resumed)


def _clear(out: Path) -> None:
    """Remove what only the work needed."""
    for name in (JOURNAL, DUPLICATES, LOCK):
        (out / name).unlink(missing_ok=True)


def _totals(shards: list[dict[str, Any]]) -> dict[str, Any]:
    return {**{key: sum(shard[key] for shard in shards) for key in ARRAYS}, "shards": shards}


def _summary(out: Path, index: dict[str, Any], resumed: bool) -> Prepared:
    splits = {
        split: {**{key: values[key] for key in ARRAYS}, "shards": len(values["shards"])}
        for split, values in index["splits"].items()
    }
    return Prepared(out, Report.from_dict(index["report"]), splits, resumed)
