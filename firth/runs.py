"""The run directory: what everything writes and reads, and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.files import atomic_file, sha256

RUN, METRICS, CARD, LOCK = "run.json", "metrics.jsonl", "README.md", "run.lock"


def read_run(path: Path) -> dict[str, Any]:
    """What `run.json` holds."""
    file = path / RUN
    if not file.is_file():
        raise InputError(f"{path} is not a run: there is no {RUN} in it.")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict) or "job" not in values:
        raise InputError(f"{file} does not describe a run.")
    return values


def fingerprint(path: Path) -> str:
    """The SHA-256 of a model's weights, or of the index of its shards."""
    for name in ("model.safetensors", "model.safetensors.index.json"):
        if (path / name).is_file():
            return sha256(path / name)
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
