"""Predictions of one model or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from firth.data.cleaning import is_invisible
from firth.data.readers import Bad, reporting_errors
from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.tasks.batched_inference import average_outputs, batched_outputs
from firth.tasks.inputs import InputTemplate, make_input_template, task_tokenizer
from firth.tasks.readers.columns import TaskFile, place
from firth.tasks.registry import HEAD_TASKS, head_tasks, task_named
from firth.tasks.task import Answer, Example, Task, TaskMetadata
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import InputError, MismatchError
from firth.utils.surrogates import without_surrogates

Progress = Callable[[str, int, int], None]


class TaskModel(Protocol):
    """What a prediction needs of a model; `firth.Model` is one."""

    network: LanguageNetwork
    path: Path | None
    source: str | None
    task: TaskMetadata | None
    objective: str | None

    @property
    def config(self) -> ModelConfig: ...
    def require_tokenizer(self) -> Tokenizer: ...
    def require_encoder_tokenizer(self) -> Tokenizer | None: ...


def resolve_task(model: TaskModel, task: str | None) -> tuple[Task, TaskMetadata]:
    """Find the task of a model, by default the one it was fine-tuned on, and its metadata."""
    where = model.source or model.path
    usable = head_tasks(model.network.heads, model.objective)
    if model.task is None and task is None and len(usable) == 1:
        task = usable[0]
    if model.task is None or (task is not None and task != model.task.task):
        named = HEAD_TASKS.get(task) or task_named(task) if task is not None else None
        if named is None and usable:
            raise MismatchError(
                f"{where} has a head for several tasks: add --task {' or --task '.join(usable)}."
            )
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
            advice = "use `firth finetune` first"
            if named.name in HEAD_TASKS:
                advice = "it is one of pre-training (BERT, ALBERT, ELECTRA)"
            raise MismatchError(f"{where} has no head for {named.name}: {advice}.")
        if model.config.architecture not in named.architectures:
            raise named.unsupported_architecture(model.config.architecture)
        return named, named.metadata(
            [], min(named.default_max_length, model.config.max_positions), {}
        )
    return task_named(model.task.task), model.task


def are_texts(rows: Sequence[Any]) -> bool:
    """Return whether rows are texts, some of which may be missing."""
    return all(isinstance(row, str | None) for row in rows)


def input_examples(
    task: Task, source: TaskFile | Sequence[str | None], bad: Bad | None = None
) -> Iterator[Example]:
    """Yield the examples of texts or a file that are not empty; report the others."""
    if isinstance(source, TaskFile):
        found = task.read(replace(source, bad=bad))
    else:
        texts = map(without_surrogates, (text or "" for text in source))
        found = (replace(task.example(text), line=i) for i, text in enumerate(texts, 1))
    for example in found:
        if not all(map(is_invisible, example.inputs)):
            yield example
            continue
        with reporting_errors(bad):
            where = f"text {example.line}"
            if isinstance(source, TaskFile):
                where = place(source.path, example.line)
            raise InputError(f"{where} is empty: there is no text to predict.")


def task_template(model: TaskModel, task: Task, metadata: TaskMetadata) -> InputTemplate:
    """Make the input template of a fine-tuned model."""
    tokenizer = model.require_tokenizer()
    if not metadata.external:
        tokenizer = task_tokenizer(model.config, tokenizer, task.head)
    length = max_task_length(model, task, metadata)
    return make_input_template(model.config, tokenizer, length, model.require_encoder_tokenizer())


def max_task_length(model: TaskModel, task: Task, metadata: TaskMetadata) -> int:
    """Return the maximum length of an input of a model's task in tokens."""
    return metadata.max_length or min(task.default_max_length, model.config.max_positions)


def ensemble_answers(
    models: Sequence[TaskModel],
    task: Task,
    metadata: Sequence[TaskMetadata],
    examples: Sequence[Example],
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Answer], int]:
    """Predict examples with an ensemble; also return the number of truncated examples."""
    outputs, items = [], []
    for model, known in zip(models, metadata, strict=True):
        template = task_template(model, task, known)
        own = task.encode(examples, template, known)
        report = partial(_report, progress, len(own))
        found = batched_outputs(task, model.network, own, known, report)
        outputs.append([_reordered(output, known, metadata[0]) for output in found])
        items.append(own)
    answers = task.answers(examples, items[0], average_outputs(outputs), metadata[0])
    return answers, sum(item.cut > 0 for item in items[0])


def check_ensemble(
    task: Task, models: Sequence[TaskModel], metadata: Sequence[TaskMetadata]
) -> None:
    """Raise MismatchError for models whose outputs cannot be averaged."""
    first, why = metadata[0], ""
    if task.generates:
        why = "they generate text"
    for model, other in zip(models[1:], metadata[1:], strict=True):
        if other.task != first.task:
            why = f"one was fine-tuned on {first.task}, another on {other.task}"
        elif set(other.labels) != set(first.labels) or other.label_type != first.label_type:
            lists = (", ".join(labels) or "none" for labels in (first.labels, other.labels))
            why = f"their labels differ ({' and '.join(lists)})"
        elif task.token_level and (
            model.require_tokenizer().fingerprint != models[0].require_tokenizer().fingerprint
        ):
            why = f"their tokenizers differ, and {first.task} predicts each token"
    if why:
        raise MismatchError(f"These models cannot be averaged: {why}.")


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
