"""Run directories as they are on disk, also those of unfinished runs and of other versions."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from firth.training.run_directory import LOCK, METRICS, RUN, SWEEPS, read_run
from firth.utils.errors import InputError
from firth.utils.files import is_locked

KINDS = {"pretraining": "pre-training", "finetuning": "fine-tuning"}
CELL = "result.json"  # beside the run of a study's cell: the name of the cell
SEARCH = "search"  # the folder of a search in the directory of its best run


@dataclass(frozen=True)
class RunRecord:
    """The files of a run: `run.json`, and the lines of `metrics.jsonl`."""

    name: str  # distinguishes it from the other runs of a report
    path: Path
    description: Mapping[str, Any]  # run.json
    log: tuple[Mapping[str, Any], ...]
    status: str  # finished, running or interrupted
    notes: tuple[str, ...] = ()  # about damaged files

    @property
    def kind(self) -> str:
        """Pre-training or fine-tuning."""
        return run_kind(self.description)

    @property
    def method(self) -> str:
        """What was trained: preset and objective, or task and strategy."""
        return describe_job(self.description)

    @property
    def group(self) -> str:
        """The kind of a run, and its task: runs of one group have the same metrics."""
        task = self.part("job").get("task")
        return f"{self.kind} ({task})" if task else self.kind

    @property
    def started(self) -> str:
        """Date and time of the start (UTC)."""
        return start_date(self.path, self.description)

    @property
    def progress(self) -> float:
        """The fraction of the training budget that was used."""
        if self.status == "finished":
            return 1.0
        return max((float(line["progress"]) for line in self.lines("step", "progress")), default=0)

    @property
    def state(self) -> str:
        """The status, with the progress of an unfinished run."""
        return self.status + (f" at {self.progress:.0%}" if self.status != "finished" else "")

    @property
    def command(self) -> str:
        """The command line of the run; "" for a run started in Python."""
        command = self.description.get("command")
        words = list(map(str, command)) if isinstance(command, list) else []
        is_firth = bool(words) and re.search(r"(^|[/\\])firth([/\\]__main__\.py|\.exe)?$", words[0])
        return " ".join(["firth", *map(_quoted, words[1:])]) if is_firth else ""

    def lines(self, kind: str, *numbers: str) -> list[Mapping[str, Any]]:
        """Return the log lines of a kind that have all of these numbers."""
        return [
            line
            for line in self.log
            if line.get("kind") == kind
            and all(isinstance(line.get(name), int | float) for name in numbers)
        ]

    def part(self, *names: str) -> dict[str, Any]:
        """Return an object inside run.json; {} if the run has none."""
        return part(self.description, *names)


def part(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a nested object; {} if there is none.

    >>> part({"results": {"metrics": {"f1": 1}}}, "results", "metrics"), part({}, "results")
    ({'f1': 1}, {})
    """
    found: Any = values
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def run_kind(description: Mapping[str, Any]) -> str:
    """Return whether a run is one of pre-training or fine-tuning.

    >>> run_kind({"kind": "pretraining"}), run_kind({"job": {"task": "tag"}})
    ('pre-training', 'fine-tuning')
    """
    default = "finetuning" if "task" in part(description, "job") else "pretraining"
    kind = str(description.get("kind", default))
    return KINDS.get(kind, kind)


def describe_job(description: Mapping[str, Any]) -> str:
    """Describe what a run trained.

    >>> describe_job({"kind": "pretraining", "job": {"preset": "bert-tiny", "objective": "masked"}})
    'bert-tiny, masked'
    """
    job = part(description, "job")
    is_tuned = run_kind(description) == KINDS["finetuning"]
    names = ("task", "strategy") if is_tuned else ("preset", "objective")
    return ", ".join(str(job[name]) for name in names if job.get(name))


def start_date(path: Path, description: Mapping[str, Any]) -> str:
    """Return when a run started; for runs that do not say so, when `run.json` was written."""
    started = description.get("started")
    return date_text(started) if isinstance(started, str) else modification_date(path / RUN)


def date_text(date: str) -> str:
    """Shorten an ISO date to minutes.

    >>> date_text("2026-11-18T02:06:15+00:00")
    '2026-11-18 02:06'
    """
    return date[:16].replace("T", " ")


def modification_date(path: Path) -> str:
    """Return when a file was written (UTC)."""
    return date_text(datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat())


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w.,:=/@%+-]+", word) else "'" + word.replace("'", "'\\''") + "'"


# ---- reading ----------------------------------------------------------------------------------


def read_records(paths: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
    """Read runs; of a folder that is not a run, read all runs in it.

    Return also notes about runs that are left out.
    """
    found: dict[Path, Path] = {}  # each run once: resolved path -> path as given
    notes: list[str] = []
    for path in paths:
        runs = run_directories(path)
        notes += failed_runs(path)
        for run in runs:
            if run.resolve() in found:
                notes.append(f"{run} was given twice and is shown once.")
            found.setdefault(run.resolve(), run)
    names = run_names(list(found))
    records = []
    for name, run in zip(names, found.values(), strict=True):
        try:
            records.append(_read(name, run))
        except InputError as error:
            if run in paths:
                raise
            notes.append(f"Left out: {error}")
    if not records:
        raise InputError(notes[-1])
    return records, notes


def _read(name: str, path: Path) -> RunRecord:
    description = read_run(path)
    log, damaged = _read_log(path)
    status = "running" if is_locked(path / LOCK) else "interrupted"
    return RunRecord(
        name=name,
        path=path,
        description=description,
        log=tuple(log),
        status="finished" if description.get("finished") else status,
        notes=(f"{name}: {damaged} of {METRICS} cannot be read.",) if damaged else (),
    )


def _read_log(path: Path) -> tuple[list[dict[str, Any]], str]:
    """Read `metrics.jsonl`; return the lines, and which of them are damaged."""
    if not (file := path / METRICS).is_file():
        return [], ""
    texts = file.read_text(encoding="utf-8", errors="replace").splitlines()
    lines, damaged = [], []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict):
            lines.append(line)
        elif text.strip():
            damaged.append(number)
    if damaged == [len(texts)]:
        return lines, "the incomplete last line"
    return lines, f"line {', '.join(map(str, damaged[:5]))}" if damaged else ""


def run_directories(path: Path) -> list[Path]:
    """Return the run at a path, or all runs in a folder such as that of a sweep."""
    if not path.is_dir():
        what = "is a file" if path.is_file() else "does not exist"
        raise InputError(f"{path} {what}; name a run directory, or a folder of runs.")
    found = [path] if (path / RUN).is_file() else []
    if not found or _is_searched(path):
        found = list(_runs_below(path))
    if not found:
        raise InputError(f"{path} is not a run directory, and holds none: there is no {RUN}.")
    return found


def _runs_below(folder: Path) -> Iterator[Path]:
    for root, folders, _ in os.walk(folder):
        folders.sort(key=_natural)
        for name in list(folders):
            below = Path(root, name)
            if (below / RUN).is_file() and not _is_searched(below):
                folders.remove(name)  # what a run contains are no other runs
                yield below


def _is_searched(path: Path) -> bool:
    """Tell whether a run is the copy of the best one of a search, which holds all of them."""
    return any((path / SEARCH).glob(f"*/{RUN}"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort numbers in names by their value.

    >>> sorted(["seed-10", "seed-9"], key=_natural)
    ['seed-9', 'seed-10']
    """
    return [(int(word or 0), rest) for word, rest in re.findall(r"(\d*)(\D*)", name)]


def failed_runs(path: Path) -> Iterator[str]:
    """Yield the errors of a sweep's runs that failed."""
    for folder in (path, path / SEARCH):
        for kind in SWEEPS:
            try:
                runs = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))["runs"]
                yield from (f"{one['name']} failed: {one['why']}" for one in runs if "why" in one)
            except (OSError, ValueError, KeyError, TypeError):  # no sweep, or not one of Firth
                continue


def run_names(paths: Sequence[Path]) -> list[str]:
    """Name runs by their directories, or by the cells of a study to which they belong."""
    cells = [_cell_name(path) for path in paths]
    return [
        cell if cell and cells.count(cell) == 1 else name
        for cell, name in zip(cells, short_names(paths), strict=True)
    ]


def _cell_name(path: Path) -> str:
    try:
        return str(json.loads((path.parent / CELL).read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):  # not in a cell
        return ""


def short_names(paths: Sequence[Path]) -> list[str]:
    """Name each path by its last parts, as many as distinguish it from the others.

    >>> short_names([Path("/a/x/run"), Path("/a/y/run"), Path("/a/z")])
    ['x/run', 'y/run', 'z']
    """
    ends = Counter(path.parts[-n:] for path in paths for n in range(1, len(path.parts) + 1))
    return [
        "/".join(next(end for n in count(1) if ends[end := path.parts[-n:]] == 1)) for path in paths
    ]
