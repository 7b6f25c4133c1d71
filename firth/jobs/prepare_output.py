"""The directory that `prepare` writes: unfinished in `OUT.partial`, then renamed as a whole."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from firth.data.corpus import START, CorpusPosition, CorpusReport, no_documents
from firth.data.shards import (
    ARRAYS,
    FORMAT,
    Shards,
    TokenizedDocuments,
    damaged,
    read_index,
    write_shard,
)
from firth.jobs.prepare_plan import PrepareJob
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError, UsageError, storage_errors
from firth.utils.files import locked, sync_directory, write_json

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
    stage: Literal["shards", "part", "signatures", "duplicates"] = "shards"  # what is complete
    url: str | None = None  # of a result in an object store

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


def finished(out: Path, plan: dict[str, Any], comparable: bool) -> PrepareResult | None:
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
def partial_directory(out: Path, resumes: bool = True) -> Iterator[Path]:
    """Create and lock the directory of unfinished shards; some jobs resume from what is in it."""
    folder = out.with_name(out.name + ".partial")
    if folder.exists() and not all(_is_own_file(path) for path in folder.iterdir()):
        raise UsageError(f"{folder} has other files; move it, or choose another --out.")
    kept = f"Finished shards are in {folder}: the same command resumes from there."
    kept = kept if resumes else "The parts are kept; free some space and merge them again."
    with storage_errors(folder, kept):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"writing {folder}"):
            try:
                yield folder
            except BaseException:
                if resumes and any(folder.glob("*.npy")):
                    raise
                shutil.rmtree(folder)
                with storage_errors(folder) if resumes else nullcontext():  # nothing was kept
                    raise


def _is_own_file(path: Path) -> bool:
    """Whether a file in the partial directory was written by `prepare`."""
    known = {LOCK, JOURNAL, FINGERPRINTS, "index.json", "tokenizer.json", "tokenizer_config.json"}
    return path.name in known or path.match("*.npy") or path.match(".*.tmp")


def load_journal(folder: Path, plan: dict[str, Any]) -> PrepareJournal:
    """Load the journal of an interrupted run with the same plan, or start a new one."""
    path = folder / JOURNAL
    if path.is_file():
        journal = PrepareJournal.load(path)
        entries = [entry for entries in journal.shards.values() for entry in entries]
        if journal.plan == plan and not any(damaged(folder, entry) for entry in entries):
            return journal
    path.unlink(missing_ok=True)
    return PrepareJournal(plan)


def remove_incomplete(folder: Path, journal: PrepareJournal) -> None:
    """Remove incomplete files of an interrupted run."""
    names = [entry["name"] for entries in journal.shards.values() for entry in entries]
    known = {f"{name}.{key}.npy" for name in names for key in (*ARRAYS, "sources")} | {LOCK}
    known |= {JOURNAL, DUPLICATES} if (folder / JOURNAL).is_file() else set()
    for path in folder.iterdir():
        if path.name == FINGERPRINTS:
            shutil.rmtree(path)
        elif path.name not in known:
            path.unlink()


def flush(
    folder: Path, journal: PrepareJournal, pending: dict[str, list[TokenizedDocuments]]
) -> None:
    """Write pending documents as one shard per split, then save the journal."""
    write_pending(folder, journal.shards, pending)
    journal.save(folder / JOURNAL)


def write_pending(
    folder: Path,
    shards: dict[str, list[dict[str, Any]]],
    pending: dict[str, list[TokenizedDocuments]],
) -> None:
    """Write pending documents as one shard per split, and add its entry to those of the split."""
    for split, passages in pending.items():
        if any(len(passage.tokens) for passage in passages):
            name = f"{split}-{len(shards[split]):05}"
            shards[split].append(write_shard(folder, name, passages))
        passages.clear()


def check_any_documents(job: PrepareJob, journal: PrepareJournal) -> None:
    """Raise an error if no document is left to train on, or none of `--valid`."""
    if not journal.shards["train"]:
        raise no_documents(job.corpora["train"], journal.report, journal.shards["valid"])
    if "valid" in job.corpora and not journal.shards["valid"]:
        raise InputError("The files of --valid hold no document; use --valid-fraction instead.")


def finish(
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
    reader.save(folder)
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
