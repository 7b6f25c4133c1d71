"""The lineage of a run: text, tokenizer, parent models and adapters, checked against the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from firth.data.shards import read_index
from firth.jobs.run_report.run_record import (
    RunRecord,
    describe_job,
    modification_date,
    part,
    run_kind,
    start_date,
)
from firth.tokenizers.tokenizer import TOKENIZER, Tokenizer
from firth.training.run_directory import IN_MEMORY, PRESET, RUN, find_run, fingerprint
from firth.utils.errors import FirthError
from firth.utils.figures import DataTable
from firth.utils.files import sha256

UNCHANGED, CHANGED, MISSING, UNSTORED = "unchanged", "changed since", "not found", "not on disk"
ROLES = {
    "model": "base model",
    "source": "parent model",
    "train": "training examples",
    "dev": "dev examples",
    "replay": "replay text",
}
ADAPTERS = {"adapter_model.safetensors": "PEFT format", "adapter.safetensors": "Firth format"}
MEMORY = " (in memory)"  # at the end of the name of a table
PREFIX_LENGTH = 12  # of a SHA-256
MOST_FILES = 5  # of a text that are listed one by one
SPACE = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Origin:
    """A run, a model or a file, and what it was made from."""

    role: str
    path: str
    what: str = ""
    sha256: str = ""  # as recorded when it was used
    date: str = ""  # UTC
    state: str = ""  # compared with the disk; "": cannot be compared
    inputs: tuple[Origin, ...] = ()

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        own = {name: getattr(self, name) for name in ("role", "path", "what", "sha256", "date")}
        return {**own, "state": self.state, "inputs": [origin.values() for origin in self.inputs]}

    def walk(self) -> Iterator[Origin]:
        """Yield this and everything that it was made from."""
        yield self
        for origin in self.inputs:
            yield from origin.walk()


def lineage(record: RunRecord) -> Origin:
    """Trace a run back to its text and its first parent."""
    path = record.path
    adapter = any((path / name).is_file() for name in ADAPTERS)
    own = "" if adapter else _digest(fingerprint, path)
    root = _trace_run(path, record.description, seen=(path.resolve(),))
    return replace(root, role=f"{record.name} ({record.state})", sha256=own)


def problems(name: str, origin: Origin) -> list[str]:
    """Say which inputs of a run are not found, or have changed since."""
    return [
        f"{name}: the {one.role} {one.path} "
        + ("has changed since it was used." if one.state == CHANGED else "is not found any more.")
        for one in origin.walk()
        if one.state in (CHANGED, MISSING)
    ]


# ---- tracing ----------------------------------------------------------------------------------


def _trace_run(path: Path, description: Mapping[str, Any], seen: tuple[Path, ...]) -> Origin:
    data = [
        _trace_data(name, values, path)
        for name, values in part(description, "data").items()
        if isinstance(values, dict)
    ]
    parents = [
        _trace_parent(name, values, path, part(description, "job"), seen)
        for name, values in part(description, "parents").items()
        if isinstance(values, dict)
    ]
    adapters = [
        Origin("adapter", str(path / name), text, _digest(sha256, path / name), _date(path / name))
        for name, text in ADAPTERS.items()
        if (path / name).is_file()
    ]
    stored = any(parent.state != UNSTORED for parent in parents)
    tokenizers = [] if stored else _tokenizer(path)
    what = f"{run_kind(description)}: {describe_job(description)}"
    inputs = (*data, *tokenizers, *parents, *adapters)
    return Origin("run", str(path), what, date=start_date(path, description), inputs=inputs)


def _trace_parent(
    name: str, values: Mapping[str, Any], run: Path, job: Mapping[str, Any], seen: tuple[Path, ...]
) -> Origin:
    """Trace a parent model, recursively if it is a run."""
    text, recorded = str(values.get("path", "")), str(values.get("sha256", ""))
    given = job.get(name)
    what = given if isinstance(given, str) and given != text else ""
    origin = Origin(ROLES.get(name, name), text, what, recorded)
    if job.get("scratch"):
        origin = replace(origin, what="architecture only: random weights")
    if text == IN_MEMORY or text.startswith(PRESET):
        return replace(origin, state=UNSTORED)
    path, state = _compare(text, recorded, run, fingerprint)
    if path is None:
        return replace(origin, state=state)
    owner = path if path.name != "best" else path.parent  # of a pre-training run
    description = _quiet_run(owner)
    origin = replace(origin, path=str(path), state=state, date=_date(path))
    if not description or job.get("scratch") or owner.resolve() in seen:
        return replace(origin, inputs=tuple(_tokenizer(path)))
    traced = _trace_run(owner, description, (*seen, owner.resolve()))
    return replace(origin, what=traced.what, date=traced.date, inputs=traced.inputs)


def _trace_data(name: str, values: Mapping[str, Any], run: Path) -> Origin:
    """Trace a data file, or shards to their text."""
    text, recorded = str(values.get("path", "")), str(values.get("sha256", ""))
    origin = Origin(ROLES.get(name, name), text, sha256=recorded)
    if text.endswith(MEMORY):
        return replace(origin, state=UNSTORED)
    path, state = _compare(text, recorded, run, _data_sum)
    if path is None:
        return replace(origin, state=state)
    origin = replace(origin, path=str(path), state=state, date=_date(path))
    if not (path / "index.json").is_file():
        return origin
    try:
        index = read_index(path)
    except FirthError:
        return replace(origin, state=CHANGED)
    train = part(index, "splits", "train")
    what = f"{train.get('tokens', 0):,} tokens, {train.get('documents', 0):,} documents"
    texts = part(index, "plan", "sources")
    inputs = [one for split in sorted(texts) for one in _texts(f"{split} text", texts[split])]
    return replace(origin, what=what, inputs=tuple(inputs))


def _texts(role: str, files: Sequence[Sequence[Any]]) -> Iterator[Origin]:
    """Compare text files with their recorded sizes and times; many are summarized."""
    origins = [_text(role, *file[:3]) for file in files]
    if len(origins) <= MOST_FILES:
        yield from origins
        return
    states = [one.state for one in origins]
    state = next((one for one in (MISSING, CHANGED) if one in states), states[0])
    bad = sum(one in (MISSING, CHANGED) for one in states)
    what = f"{len(origins):,} files" + (f", {bad:,} of them changed or not found" if bad else "")
    folder = os.path.commonpath([one.path for one in origins]) if MISSING not in states else ""
    yield Origin(role, folder or origins[0].path, what, state=state)


def _text(role: str, path: str, size: Any = "", modified: int | None = None) -> Origin:
    """Compare one file; a table has no size, and standard input neither."""
    if modified is None:
        return Origin(role, str(path), sha256=str(size), state=UNSTORED)
    what = f"{size:,} bytes"
    if not Path(path).is_file():
        return Origin(role, path, what, state=MISSING)
    status = os.stat(path)
    same = (status.st_size, status.st_mtime_ns) == (size, modified)
    return Origin(role, path, what, date=_date(Path(path)), state=UNCHANGED if same else CHANGED)


def _tokenizer(path: Path) -> list[Origin]:
    """Return the tokenizer of a model directory, if it has one that can be read."""
    if not (file := path / TOKENIZER).is_file():
        return []
    try:
        tokenizer = Tokenizer.load(path)
    except (FirthError, ValueError):
        return [Origin("tokenizer", str(file), date=_date(file))]
    what = f"{len(tokenizer):,} tokens"
    return [Origin("tokenizer", str(file), what, tokenizer.fingerprint, _date(file))]


# ---- comparing with the disk ------------------------------------------------------------------


def _compare(
    text: str, recorded: str, run: Path, digest: Callable[[Path], str]
) -> tuple[Path | None, str]:
    """Find a recorded path, and compare its content with the recorded SHA-256.

    A relative path was relative to the working directory of that run: this one, or one above the
    run's directory.
    """
    places = [Path(), *run.resolve().parents] if not Path(text).is_absolute() else [Path()]
    found = [place / text for place in places if text and (place / text).exists()]
    if not found:
        return None, MISSING
    if not recorded:
        return found[0], ""
    same = [path for path in found if _digest(digest, path) == recorded]
    return (same[0], UNCHANGED) if same else (found[0], CHANGED)


def _data_sum(path: Path) -> str:
    return sha256(path / "index.json" if path.is_dir() else path)


def _digest(digest: Callable[[Path], str], path: Path) -> str:
    """Compute a SHA-256 once for each version of a file or directory; "" if it cannot be read."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        times = tuple(file.stat().st_mtime_ns for file in files)
        return _cached_digest(digest, path.resolve(), times)
    except (FirthError, OSError):
        return ""


@lru_cache(maxsize=1024)
def _cached_digest(digest: Callable[[Path], str], path: Path, _times: tuple[int, ...]) -> str:
    return digest(path)


def _quiet_run(path: Path) -> dict[str, Any]:
    """Read the `run.json` of a model that may not be a run, or that may be damaged."""
    try:
        return find_run(path)
    except FirthError:
        return {}


def _date(path: Path) -> str:
    file = path / RUN if (path / RUN).is_file() else path
    return modification_date(file) if file.exists() else ""


# ---- figures ----------------------------------------------------------------------------------


def lineage_table(origins: Iterable[Origin]) -> DataTable:
    """Show lineages as one tree; what several runs have in common is expanded once."""
    rows: list[tuple[str, ...]] = []
    expanded: set[tuple[str, str]] = set()
    for origin in origins:
        _add_rows(rows, origin, "", "", expanded)
    bad = [state.replace(" ", SPACE) for state in (CHANGED, MISSING)]
    marked = frozenset((number, 5) for number, row in enumerate(rows) if row[5] in bad)
    columns = ("", "path", "", "SHA-256", "date (UTC)", "state")
    return DataTable("", columns, tuple(rows), texts=True, marked=marked)


def _add_rows(
    rows: list[tuple[str, ...]],
    origin: Origin,
    branch: str,
    indent: str,
    expanded: set[tuple[str, str]],
) -> None:
    key = (os.path.abspath(origin.path), origin.what)
    again = bool(origin.inputs) and key in expanded
    what = "; ".join(filter(None, [origin.what, "its inputs are above" if again else ""]))
    short = origin.sha256[:PREFIX_LENGTH]
    name = branch + origin.role.replace(" ", SPACE)
    date = origin.date.replace("-", "/").replace(" ", SPACE)  # browsers break lines at hyphens
    state = origin.state.replace(" ", SPACE)
    rows.append((name, origin.path, what, short, date, state))
    expanded.add(key)
    inputs = () if again else origin.inputs
    for number, one in enumerate(inputs, 1):
        last = number == len(inputs)
        step = indent + ("└─" if last else "├─") + SPACE
        below = indent + (SPACE if last else "│") + 2 * SPACE
        _add_rows(rows, one, step, below, expanded)
