"""Asking models: what each can be asked, and what they say of some examples together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from firth.errors import MismatchError, Misuse
from firth.model import Model, load
from firth.tasks.frame import make_frame
from firth.tasks.running import averaged, outputs
from firth.tasks.table import task_named
from firth.tasks.task import Answer, Example, Facts, Task
from firth.training.machine import best_device

Progress = Callable[[str, int, int], None]


def open_model(
    model: str | Path | Model, device: str | None, *, weights: str | None = None
) -> Model:
    """A model that may be opened already."""
    if isinstance(model, Model):
        if weights is not None:
            raise Misuse(
                f"This model is open, and its weights stay as they are: open it with "
                f"firth.load(…, weights={weights!r})."
            )
        return model
    return load(model, device=str(best_device(device)), weights=weights)


def work_of(model: Model, task: str | None) -> tuple[Task, Facts]:
    """What a model is asked to do, and what it knows of that."""
    where = model.source or model.path
    if model.task is None or (task is not None and task != model.task.task):
        named = task_named(task) if task is not None else None
        if named is None:
            raise MismatchError(
                f"{where} was never taught a task: `firth finetune` teaches it one; `firth fill`, "
                "`generate` and `embed` use it as it is, `firth evaluate --task lm` measures it."
            )
        if model.task is not None and task_named(model.task.task).head == named.head != "language":
            if named.numbers != (model.task.labelling == "number"):
                raise MismatchError(
                    f"{where} was taught {model.task.task}, which is not {named.name}."
                )
            return named, replace(model.task, task=named.name)
        if named.head not in model.network.heads:
            raise MismatchError(
                f"{where} has no head for {named.name}: `firth finetune` with --task {named.name} "
                "gives it one."
            )
        if model.config.architecture not in named.architectures:
            raise named.cannot(model.config.architecture)
        return named, named.facts([], min(named.length, model.config.context), {})
    return task_named(model.task.task), model.task


def answers_of(
    models: Sequence[Model],
    task: Task,
    facts: Sequence[Facts],
    examples: Sequence[Example],
    progress: Progress,
) -> tuple[list[Answer], list[str]]:
    """What models say of examples together, and what there is to note."""
    answers, cut = answer(models, task, facts, examples, progress)
    return answers, cut_note(cut, len(examples))


def answer(
    models: Sequence[Model],
    task: Task,
    facts: Sequence[Facts],
    examples: Sequence[Example],
    progress: Progress = lambda what, done, there: None,
) -> tuple[list[Answer], int]:
    """What models say of examples together, and how many of those were cut."""
    said, items, frames = [], [], []
    for model, known in zip(models, facts, strict=True):
        length = known.length or min(task.length, model.config.context)
        reader = model.reader_needed()
        frame = make_frame(model.config, model.tokenizer_needed(), length, reader)
        own = task.encode(examples, frame, known)
        tell = partial(_tell, progress, len(own))
        found = outputs(task, model.network, own, known, tell)
        said.append([_reordered(output, known, facts[0]) for output in found])
        items.append(own)
        frames.append(frame)
    answers = task.answers(examples, items[0], averaged(said), facts[0], frames[0])
    return answers, sum(item.cut > 0 for item in items[0])


def cut_note(cut: int, there: int) -> list[str]:
    """What is said of examples that were too long, if any were.

    >>> cut_note(0, 5), cut_note(2, 5)
    ([], ['2 of 5 examples were longer than the model reads, and were cut.'])
    """
    if not cut:
        return []
    return [f"{cut:,} of {there:,} examples were longer than the model reads, and were cut."]


def _tell(progress: Progress, there: int, done: int) -> None:
    progress("answered", done, there)


def _reordered(output: Any, own: Facts, first: Facts) -> Any:
    """What a model says, with its labels in the order of the first model's."""
    if own.labels == first.labels or not own.labels:
        return output
    return output[..., [own.labels.index(label) for label in first.labels]]
