"""Using what was learned: answers for a file of examples, and what they are worth."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from firth.errors import InputError, MismatchError, storage_errors
from firth.files import atomic_file
from firth.metrics.bootstrap import Figure
from firth.metrics.entities import entities_by_type
from firth.model import Model, load
from firth.tasks.frame import make_frame
from firth.tasks.material import check_columns
from firth.tasks.running import averaged, outputs
from firth.tasks.table import task_named
from firth.tasks.task import Answer, Example, Facts, Item, Task, cannot
from firth.training.machine import best_device

Progress = Callable[[str, int, int], None]
LENGTH = 512  # tokens of a text for a model that was never taught the task
TOKENWISE = ("span", "lm")  # what they say is said of tokens


@dataclass(frozen=True)
class Evaluation:
    """What a model's answers are worth."""

    task: str
    n: int
    figures: dict[str, Figure]
    seconds: float
    parts: dict[str, dict[str, Figure]] = field(default_factory=dict)  # by type of entity
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "task": self.task,
            "n": self.n,
            "metrics": {name: asdict(figure) for name, figure in self.figures.items()},
            "seconds": self.seconds,
            "parts": {
                part: {name: asdict(figure) for name, figure in row.items()}
                for part, row in self.parts.items()
            },
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Predictions:
    """A model's answers, with the examples they are about."""

    task: str
    examples: list[Example]
    answers: list[Answer]
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """The answers as plain JSON values."""
        return {"task": self.task, "predictions": self.answers, "notes": self.notes}


def evaluate(
    model: str | Path | Model,
    *,
    data: str | Path,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, there: None,
) -> Evaluation:
    """How well a model does its task on the examples of a file."""
    begun = time.monotonic()
    opened = _open(model, device)
    chosen, facts = _work(opened, task)
    check_columns(chosen, columns or {})
    examples = chosen.read(data, format=format, columns=columns or {})
    if not examples:
        raise InputError(f"{data} holds no examples.")
    chosen.check(facts, examples, Path(data))
    answers, notes = _answers([opened], chosen, [facts], examples, progress)
    parts = {}
    if chosen.name == "tag" and facts.options["entities"]:
        gold = [example.tags for example in examples]
        parts = entities_by_type(gold, [answer["tags"] for answer in answers])
    figures = chosen.figures(examples, answers, facts)
    return Evaluation(chosen.name, len(examples), figures, time.monotonic() - begun, parts, notes)


def predict(
    models: Sequence[str | Path | Model] | str | Path | Model,
    *,
    data: str | Path,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, there: None,
) -> Predictions:
    """The answers of a model, or of several together, to the examples of a file.

    Several models' probabilities are averaged: an ensemble.
    """
    several = [models] if isinstance(models, str | Path | Model) else list(models)
    opened = [_open(model, device) for model in several]
    work = [_work(model, task) for model in opened]
    chosen, _ = work[0]
    check_columns(chosen, columns or {})
    if len(opened) > 1:
        _check_alike(opened, [facts for _, facts in work])
    examples = chosen.read(data, labelled=False, format=format, columns=columns or {})
    answers, notes = _answers(opened, chosen, [facts for _, facts in work], examples, progress)
    return Predictions(chosen.name, examples, answers, notes)


def write_predictions(found: Predictions, path: str | Path) -> None:
    """Answers as JSONL, one line for each example."""
    out = Path(path)
    with storage_errors(out, "Free some space or name another place."), atomic_file(out) as file:
        for answer in found.answers:
            file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")


def _open(model: str | Path | Model, device: str | None) -> Model:
    if isinstance(model, Model):
        return model
    return load(model, device=str(best_device(device)))


def _check_alike(models: Sequence[Model], facts: Sequence[Facts]) -> None:
    """Refuse models whose answers have no mean."""
    first, why = facts[0], ""
    if first.task == "seq2seq":
        why = "texts have no mean"
    for model, other in zip(models[1:], facts[1:], strict=True):
        if other.task != first.task:
            why = f"one was taught {first.task}, another {other.task}"
        elif set(other.labels) != set(first.labels) or other.labelling != first.labelling:
            lists = (", ".join(labels) or "none" for labels in (first.labels, other.labels))
            why = f"they do not have the same labels ({' and '.join(lists)})"
        elif first.task in TOKENWISE and (
            model.tokenizer_needed().fingerprint != models[0].tokenizer_needed().fingerprint
        ):
            why = f"they cut texts into other tokens, of which each has its score in {first.task}"
    if why:
        raise MismatchError(f"These models cannot be averaged: {why}.")


def _work(model: Model, task: str | None) -> tuple[Task, Facts]:
    """What a model is asked to do, and what it knows of that."""
    where = model.source or model.path
    if model.task is None or (task is not None and task != model.task.task):
        named = task_named(task) if task is not None else None
        if named is None:
            raise MismatchError(
                f"{where} was never taught a task: `firth finetune` teaches it one; `firth fill`, "
                "`generate` and `embed` use it as it is."
            )
        if model.task is not None and task_named(model.task.task).head == named.head != "language":
            if (named.name == "regress") != (model.task.labelling == "number"):
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
            raise cannot(named.name, model.config.architecture)
        return named, named.facts([], min(LENGTH, model.config.context), {})
    return task_named(model.task.task), model.task


def _answers(
    models: Sequence[Model],
    task: Task,
    facts: Sequence[Facts],
    examples: Sequence[Example],
    progress: Progress,
) -> tuple[list[Answer], list[str]]:
    said, items, frames = [], [], []
    for model, known in zip(models, facts, strict=True):
        length = known.length or min(LENGTH, model.config.context)
        reader = model.reader_needed()
        frame = make_frame(model.config, model.tokenizer_needed(), length, reader)
        own = task.encode(examples, frame, known)
        tell = partial(_tell, progress, len(own))
        found = outputs(task, model.network, own, known, tell)
        said.append([_reordered(output, known, facts[0]) for output in found])
        items.append(own)
        frames.append(frame)
    answers = task.answers(examples, items[0], averaged(said), facts[0], frames[0])
    return answers, _cut(items[0])


def _tell(progress: Progress, there: int, done: int) -> None:
    progress("answered", done, there)


def _reordered(output: Any, own: Facts, first: Facts) -> Any:
    """What a model says, with its labels in the order of the first model's."""
    if own.labels == first.labels or not own.labels:
        return output
    return output[..., [own.labels.index(label) for label in first.labels]]


def _cut(items: Sequence[Item]) -> list[str]:
    cut = sum(item.cut > 0 for item in items)
    if not cut:
        return []
    return [f"{cut:,} of {len(items):,} examples were longer than the model reads, and were cut."]
