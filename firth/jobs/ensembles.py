"""Predictions of one model or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from firth.model import Model, load
from firth.tasks.batched_inference import average_outputs, batched_outputs
from firth.tasks.inputs import make_input_template
from firth.tasks.registry import task_named
from firth.tasks.task import Answer, Example, Task, TaskMetadata
from firth.utils.devices import select_device
from firth.utils.errors import MismatchError, UsageError

Progress = Callable[[str, int, int], None]


def load_if_needed(
    model: str | Path | Model, device: str | None, *, weights: str | None = None
) -> Model:
    """Load a model, unless it is loaded already."""
    if isinstance(model, Model):
        if weights is not None:
            raise UsageError(
                f"This model is loaded already; use firth.load(…, weights={weights!r}) instead."
            )
        return model
    return load(model, device=str(select_device(device)), weights=weights)


def resolve_task(model: Model, task: str | None) -> tuple[Task, TaskMetadata]:
    """Find the task of a model, by default the one it was fine-tuned on, and its metadata."""
    where = model.source or model.path
    if model.task is None or (task is not None and task != model.task.task):
        named = task_named(task) if task is not None else None
        if named is None:
            raise MismatchError(
                f"{where} was not fine-tuned on a task: use `firth finetune` first; `firth fill`, "
                "`generate`, `embed` and `evaluate --task lm` work without."
            )
        if model.task is not None and task_named(model.task.task).head == named.head != "language":
            if named.numbers != (model.task.label_type == "number"):
                raise MismatchError(
                    f"{where} was fine-tuned on {model.task.task}, not on {named.name}."
                )
            return named, replace(model.task, task=named.name)
        if named.head not in model.network.heads:
            raise MismatchError(
                f"{where} has no head for {named.name}: use `firth finetune` first."
            )
        if model.config.architecture not in named.architectures:
            raise named.unsupported_architecture(model.config.architecture)
        return named, named.metadata(
            [], min(named.default_max_length, model.config.max_positions), {}
        )
    return task_named(model.task.task), model.task


def ensemble_answers(
    models: Sequence[Model],
    task: Task,
    metadata: Sequence[TaskMetadata],
    examples: Sequence[Example],
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Answer], int]:
    """Predict examples with an ensemble; also return the number of truncated examples."""
    outputs, items = [], []
    for model, known in zip(models, metadata, strict=True):
        length = known.max_length or min(task.default_max_length, model.config.max_positions)
        reader = model.require_encoder_tokenizer()
        template = make_input_template(model.config, model.require_tokenizer(), length, reader)
        own = task.encode(examples, template, known)
        report = partial(_report, progress, len(own))
        found = batched_outputs(task, model.network, own, known, report)
        outputs.append([_reordered(output, known, metadata[0]) for output in found])
        items.append(own)
    answers = task.answers(examples, items[0], average_outputs(outputs), metadata[0])
    return answers, sum(item.cut > 0 for item in items[0])


def truncation_note(cut: int, total: int) -> list[str]:
    """Make the note about truncated examples, if there are any.

    >>> truncation_note(0, 5), truncation_note(2, 5)
    ([], ['2 of 5 examples were longer than the maximum length and were truncated.'])
    """
    if not cut:
        return []
    return [
        f"{cut:,} of {total:,} examples were longer than the maximum length and were truncated."
    ]


def _report(progress: Progress, total: int, done: int) -> None:
    progress("answered", done, total)


def _reordered(output: Any, own: TaskMetadata, first: TaskMetadata) -> Any:
    """Reorder a model's output to the label order of the first model."""
    if own.labels == first.labels or not own.labels:
        return output
    return output[..., [own.labels.index(label) for label in first.labels]]
