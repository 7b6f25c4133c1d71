"""What a model owes to the examples that it is evaluated on: training, or a selection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firth.data.memory import MemoryTable, Source
from firth.model import Model
from firth.tasks.readers.subsampling import input_hash
from firth.tasks.task import Example
from firth.training.run_directory import read_run
from firth.utils.errors import InputError
from firth.utils.files import sha256

MAX_DEV_HASHES = 20_000  # of dev examples, in run.json


def dev_hashes(examples: Sequence[Example]) -> list[str]:
    """Return the hashes by which `evaluate` recognizes dev examples."""
    return [input_hash(example) for example in examples[:MAX_DEV_HASHES]]


def selections(model: Model, examples: Sequence[Example]) -> tuple[list[str], list[str]]:
    """Find what the examples selected when the model was fine-tuned; also return a note.

    The run's `run.json` has the hashes of its dev examples.
    """
    run = _run(model)
    selected = list(run.get("results", {}).get("selected_on", ()))
    known = set(run.get("dev_hashes", ()))
    if not selected or not (same := sum(input_hash(example) in known for example in examples)):
        return [], []
    least = "At least " if len(known) >= MAX_DEV_HASHES else ""
    return selected, [
        f"{least}{same:,} of the {len(examples):,} examples were dev examples when {model.source} "
        "was fine-tuned."
    ]


def training_data_note(model: Model, data: Source) -> list[str]:
    """Make a note if the data are those that the model was fine-tuned on."""
    trained_on = _run(model).get("data", {}).get("train", {}).get("sha256")
    if isinstance(data, MemoryTable):
        own = data.sha256 if trained_on else ""
    else:
        own = sha256(Path(data)) if trained_on and Path(data).is_file() else ""
    if not own or own != trained_on:
        return []
    return [f"{model.source} was fine-tuned on {data}: the metrics are optimistic."]


def _run(model: Model) -> dict[str, Any]:
    """Read the description of a fine-tuning run; {} if the model is no such run."""
    try:
        run = read_run(model.path) if model.path is not None else {}
    except InputError:
        return {}
    return run if run.get("kind") == "finetuning" else {}
