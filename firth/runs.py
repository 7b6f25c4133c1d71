"""The run directory: what everything writes and reads, and what it says of itself."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import firth
from firth.errors import InputError, Misuse
from firth.files import atomic_file, sha256

SWEEPS = ("seeds", "search", "strategies")  # kinds of several runs side by side
RUN, METRICS, CARD, LOCK = "run.json", "metrics.jsonl", "README.md", "run.lock"
WEIGHTS = (  # where they lie; those of large models in several files, with an index
    "model.safetensors",
    "model*.safetensors*",
    "adapter_model.safetensors",
    "adapter.safetensors",
)


def announced(
    validate: Callable[[], dict[str, Any]], listener: Callable[[str, dict[str, Any]], None]
) -> Callable[[], dict[str, Any]]:
    """A validation that whoever listens hears of as it begins: it may take a while."""

    def announce() -> dict[str, Any]:
        listener("validating", {})
        return validate()

    return announce


def read_run(path: Path) -> dict[str, Any]:
    """What `run.json` holds."""
    file = path / RUN
    if not file.is_file():
        raise InputError(f"{path} is not a run: there is no {RUN} in it.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict) or not isinstance(values.get("job"), dict):
        raise InputError(f"{file} does not describe a run.")
    return values


def best_of_several(path: Path) -> Path | None:
    """The best of several runs side by side, where a directory holds those and no model itself."""
    found = [file for kind in SWEEPS if (file := path / f"{kind}.json").is_file()]
    if not found or (path / "config.json").is_file():
        return None
    try:
        return path / str(json.loads(found[0].read_text(encoding="utf-8"))["best"])
    except (ValueError, KeyError, TypeError):  # a file of somebody else
        return None


def check_place(out: Path, begun: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """A run goes into an empty place, or on where the same run stopped.

    Returns what `run.json` is to say: a run that goes on keeps the command it was begun with.
    """
    if out.is_file():
        raise Misuse(f"{out} is a file; a run needs a directory.")
    if not out.is_dir() or not {path.name for path in out.iterdir()} - {LOCK}:
        return dict(begun)
    if not (out / RUN).is_file():
        raise Misuse(f"{out} holds something other than a run; name an empty directory.")
    found = read_run(out)
    if not resume:
        done = "a finished run" if found.get("finished") else "a run"
        raise Misuse(f"{out} already holds {done}; add --resume to go on with it, or name another.")
    if found.get("finished"):
        raise Misuse(
            f"The run in {out} is finished; name another place to learn on from its model."
        )
    if different := next(_differences(_decisive(found), _decisive(_plain(begun))), None):
        name, before, now = different
        raise Misuse(
            f"The run in {out} was begun with {name} {_said(before)}, not {_said(now)}; resume it "
            f"with the command it was begun with, which is in {RUN}."
        )
    return {**begun, "command": found.get("command", begun["command"])}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _decisive(values: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run this one; first what it was given, from which the rest may follow."""
    given = {name: values.get(name) for name in ("kind", "data", "parents")}
    return {**given, **values["job"]}


def _differences(before: Any, now: Any, *names: str) -> Iterator[tuple[str, Any, Any]]:
    """The fields that are not the same, with both values; a file is its contents and may move.

    >>> file = {"path": "x", "sha256": "1"}
    >>> list(_differences({"a": {"b": 1, "c": file}}, {"a": {"c": file | {"path": "y"}}}))
    [('a.b', 1, None)]
    >>> list(_differences({"settings": {"rate": 1}}, {"settings": {"rate": 1, "came later": 2}}))
    []
    """
    if isinstance(before, dict) and isinstance(now, dict) and "sha256" not in now:
        for name in before | now:
            if "settings" not in names or (name in before and name in now):  # versions have others
                yield from _differences(before.get(name), now.get(name), *names, name)
    elif names[-1] in ("source", "teacher") and isinstance(now, str) and isinstance(before, str):
        return  # paths; the contents are among the parents
    elif _content(before) != _content(now):
        yield ".".join(names), before, now


def _content(value: Any) -> Any:
    return value.get("sha256", value) if isinstance(value, dict) else value


def _said(value: Any) -> str:
    """A value within a sentence.

    >>> _said({"path": "a.txt", "sha256": "0123456789abcdef"}), _said(0.4), _said(None)
    ('a.txt (SHA-256 0123456789ab…)', '0.4', 'none')
    """
    if isinstance(value, dict) and "sha256" in value:
        return f"{value.get('path')} (SHA-256 {str(value['sha256'])[:12]}…)"
    return "none" if value is None else repr(value)


def versions() -> dict[str, str]:
    """Of everything that decides a run's bits."""
    return {
        "firth": firth.__version__,
        "torch": version("torch"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def fingerprint(path: Path) -> str:
    """The SHA-256 of a model's or an adapter's weights; of several files, that of their sums."""
    if path.is_file():
        return sha256(path)
    for pattern in WEIGHTS:
        if found := sorted(path.glob(pattern)):
            sums = [sha256(file) for file in found]
            return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
    raise InputError(f"{path} holds no model: there is no model.safetensors in it.")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`; a last line that a kill cut off is passed over."""
    lines = []
    for line in (path / METRICS).read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def write_card(path: Path, values: dict[str, Any], example: str) -> None:
    """`README.md`: what the model is, what it learned from, how it does, how to use it."""
    job, results = values["job"], values["results"]
    config, settings = job["config"], job["settings"]
    optimizer = settings["optimizer"]
    rows = {
        "architecture": f"{config['architecture']}, {config['layers']} layers"
        + (f" + {config['decoder_layers']}" if config["decoder_layers"] else "")
        + f" of width {config['width']}, {results['parameters']:,} parameters",
        "preset": job["preset"],
        "objective": job["objective"],
        "text": f"{values['data']['path']} (SHA-256 of its index {values['data']['sha256'][:12]}…)",
        "learned": f"{results['steps']:,} steps, {results['tokens']:,} tokens, "
        f"{results['seconds'] / 60:.1f} minutes",
        "optimizer": f"{optimizer['kind']}, rate {optimizer['rate']:g}, {settings['schedule']}",
        "validation": ", ".join(f"{k} {v:.4g}" for k, v in results["validation"].items()) or "none",
        "seed": settings["seed"],
    }
    rows |= {name: parent["path"] for name, parent in values["parents"].items()}
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    lines = [
        f"# {path.resolve().name}",
        "",
        f"A language model pre-trained with Firth ({job['preset']}, {job['objective']}).",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "![loss](loss.png)",
        "",
        "```python",
        "import firth",
        "",
        f'model = firth.load("{path}")',
        example,
        "```",
        "",
        f"Everything that decided this run is in `{RUN}`. Made with {versions}.",
        "",
    ]
    with atomic_file(path / CARD) as file:
        file.write("\n".join(lines).encode())


def learned_from(results: Mapping[str, Any]) -> str:
    """How many examples a fine-tuned model learned from, in words.

    >>> learned_from({"train": 1200, "variants": 0}), learned_from({"train": 60, "variants": 120})
    ('1,200 examples', '60 examples and 120 variants of them')
    """
    variants = f" and {results['variants']:,} variants of them" if results["variants"] else ""
    return f"{results['train']:,} examples{variants}"


def write_tuned_card(path: Path, values: dict[str, Any]) -> None:
    """The same for a model that was fine-tuned."""
    job, results = values["job"], values["results"]
    settings = job["settings"]
    optimizer = settings["optimizer"]
    rows = {
        "task": f"{job['task']} ({job['recipe']} recipe)",
        "from": " and ".join(parent["path"] for parent in values["parents"].values()),
        "strategy": f"{job['strategy']}: {results['trained']:,} of {results['parameters']:,} "
        f"parameters trained ({results['share']:.2%})",
        "examples": f"{learned_from(results)} to learn from, {results['n']:,} to validate on",
        "data": ", ".join(file["path"] for file in values["data"].values()),
        "learned": f"{results['steps']:,} steps, {results['seconds']:.0f} seconds",
        "optimizer": f"{optimizer['kind']}, rate {optimizer['rate']:g}, {settings['schedule']}",
        "seed": settings["seed"],
    }
    figures = [
        f"| {name} | {figure['value']:.4f} | {figure['low']:.4f} to {figure['high']:.4f} |"
        for name, figure in results["metrics"].items()
    ]
    labels = values["task"]["labels"]
    lines = [
        f"# {path.resolve().name}",
        "",
        f"A model fine-tuned with Firth for {job['task']}.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        *([f"| labels | {', '.join(labels)} |"] if labels else []),
        "",
        "| on the dev examples | | 95 % interval |",
        "|---|---|---|",
        *figures,
        "",
        *(f"- {note}" for note in results["notes"]),
        "",
        "```bash",
        f"firth predict {path} --data FILE",
        "```",
        "",
        f"Everything that decided this run is in `{RUN}`. Made with "
        + ", ".join(f"{name} {version}" for name, version in values["versions"].items())
        + ".",
        "",
    ]
    with atomic_file(path / CARD) as file:
        file.write("\n".join(lines).encode())
