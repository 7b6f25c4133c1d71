"""The run directory: its files, and its description in `run.json`."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import firth
from firth.training.distributed.ranks import current_ranks
from firth.utils.errors import InputError, UsageError
from firth.utils.files import sha256

SWEEPS = ("seeds", "search", "strategies")  # kinds of jobs with several runs
RUN, METRICS, LOCK = "run.json", "metrics.jsonl", "run.lock"
SHARDS = "shards"
INPUTS = (SHARDS, f"{SHARDS}.partial", "source", "teacher")  # that were in memory
IN_MEMORY, PRESET = "a model in memory", "preset "  # parents without a path, the second + its name
# Folders of the runs before the last in ULMFiT.
GENERAL_LANGUAGE_MODEL, LANGUAGE_MODEL = "general-language-model", "language-model"
WEIGHTS = (  # file names; large models have several files and an index
    "model.safetensors",
    "model*.safetensors*",
    "adapter_model.safetensors",
    "adapter.safetensors",
)


def saved_bytes(folder: Path) -> int:
    """Return the size of the weights in a directory: of a model, or of an adapter."""
    names = ("*model*.safetensors", "adapter.safetensors")
    return sum(file.stat().st_size for name in names for file in folder.glob(name))


def find_run(path: Path) -> dict[str, Any]:
    """Read `run.json` if there is one that Firth wrote, which names Firth's version; else {}."""
    file = path / RUN
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    if '"firth"' not in text:
        return {}
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict) or "firth" not in _object(values, "versions"):
        return {}
    if not _object(values, "job"):
        raise InputError(f"{file} does not describe a run.")
    return values


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def read_run(path: Path) -> dict[str, Any]:
    """Read `run.json`; raise an error if there is none."""
    if not (values := find_run(path)):
        raise InputError(f"{path} is not a run directory: it has no {RUN} of Firth.")
    return values


def best_run(path: Path) -> Path | None:
    """Return the best run in the directory of a sweep; None if it is not one."""
    found = [file for kind in SWEEPS if (file := path / f"{kind}.json").is_file()]
    if not found or (path / "config.json").is_file():
        return None
    try:
        return path / str(json.loads(found[0].read_text(encoding="utf-8"))["best"])
    except (ValueError, KeyError, TypeError):  # not written by Firth
        return None


def check_run_directory(out: Path, description: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """Check that the directory is empty, or holds the same unfinished run if `resume`.

    Return the contents of `run.json`; a resumed run keeps its original command and start. Only the
    main rank checks.
    """
    if not current_ranks().is_main:
        return dict(description)
    if out.is_file():
        raise UsageError(f"{out} is a file; a run needs a directory.")
    if not out.is_dir() or not {path.name for path in out.iterdir()} - {
        LOCK,
        GENERAL_LANGUAGE_MODEL,
        LANGUAGE_MODEL,
        *INPUTS,
    }:
        return dict(description)
    if not (found := find_run(out)):
        raise UsageError(f"{out} is not empty and holds no run; choose an empty directory.")
    if not resume:
        holds = (
            "a finished run;" if found.get("finished") else "a run; add --resume to continue it, or"
        )
        raise UsageError(f"{out} already holds {holds} choose another directory.")
    if found.get("finished"):
        raise UsageError(
            f"The run in {out} is finished; to continue from its model, choose another directory."
        )
    if different := next(_differences(_identity(found), _identity(_plain(description))), None):
        name, before, now = different
        raise UsageError(
            f"The run in {out} was started with {name} {_shown(before)}, not {_shown(now)}; resume "
            f"it with its original command, which is in {RUN}."
        )
    kept = ("command", "started")
    return {**description, **{name: found[name] for name in found if name in kept}}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a run: first its inputs, from which the rest may follow."""
    given = {name: values.get(name) for name in ("kind", "data", "parents")}
    return {**given, **values["job"]}


def _differences(before: Any, now: Any, *names: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ, with both values; files are compared by their contents.

    >>> file = {"path": "x", "sha256": "1"}
    >>> list(_differences({"a": {"b": 1, "c": file}}, {"a": {"c": file | {"path": "y"}}}))
    [('a.b', 1, None)]
    >>> list(_differences({"training": {"steps": 1}}, {"training": {"steps": 1, "new field": 2}}))
    []
    >>> whole, half, double = ({"micro_batch_tokens": size} for size in (0, 512, 1024))
    >>> list(_differences(whole, half)), list(_differences(half, double))
    ([], [('micro_batch_tokens', 512, 1024)])
    """
    if isinstance(before, dict) and isinstance(now, dict) and "sha256" not in now:
        for name in before | now:
            lenient = {"training", "model"} & set(names)  # other versions may have other fields
            if not lenient or (name in before and name in now):
                yield from _differences(before.get(name), now.get(name), *names, name)
    elif names[-1] == "micro_batch_tokens" and 0 < now < (before or math.inf):
        return  # after an out-of-memory error
    elif names[-1] in ("source", "teacher") and isinstance(now, str) and isinstance(before, str):
        return  # their contents are compared in `parents`
    elif _content(before) != _content(now):
        yield ".".join(names), before, now


def _content(value: Any) -> Any:
    return value.get("sha256", value) if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    """Format a value for an error message.

    >>> _shown({"path": "a.txt", "sha256": "0123456789abcdef"}), _shown(0.4), _shown(None)
    ('a.txt (SHA-256 0123456789ab…)', '0.4', 'none')
    """
    if isinstance(value, dict) and "sha256" in value:
        return f"{value.get('path')} (SHA-256 {str(value['sha256'])[:12]}…)"
    return "none" if value is None else repr(value)


def versions() -> dict[str, str]:
    """Return the versions of everything that affects the numerical results."""
    return {
        "firth": firth.__version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a model's or adapter's weights; for several files, of their hashes."""
    if path.is_file():
        return sha256(path)
    for pattern in WEIGHTS:
        if found := sorted(path.glob(pattern)):
            sums = [sha256(file) for file in found]
            return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    raise InputError(f"{path} holds no model: it has no model.safetensors.")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read `metrics.jsonl` of a run directory, or one such file; skip an incomplete last line."""
    lines, file = [], path / METRICS if path.is_dir() else path
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
