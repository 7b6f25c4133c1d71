"""Cells that fine-tune a model, and score each test example."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.metrics.entities import read_entities
from firth.metrics.question_answering import score_answer
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tasks.ensembles import ensemble_answers, resolve_task
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.registry import task_named
from firth.tasks.task import Answer, Example
from firth.training.log import Callback
from firth.utils.errors import UsageError

EXACT_MATCH = "exact_match"
Score = Callable[[Example, Answer], tuple[float, float]]


def finetuned(
    context: CellContext,
    *,
    model: File | str,
    task: str,
    data: Cell,
    labels: int = 0,
    options: Mapping[str, Any],
    vectors: File | None = None,
    keep: bool = False,
) -> Mapping[str, Any]:
    """Fine-tune on `labels` training examples (0: all) and score the test examples.

    `model` may be the name of a task-specific model, with word `vectors` of another.
    `data` is a cell of `split_task_data`; `options` are arguments of `finetune`. The run is
    evaluated on the test examples once, at its end: nothing is selected on them. Weights are
    deleted unless `keep`.
    """
    losses: list[float] = []  # of the training steps
    if vectors is not None:
        options = {**options, "vectors": context.path(vectors)}
    found = finetune_on_cell(
        context,
        model=model,
        task=task,
        data=data,
        labels=labels,
        options=options,
        callback=partial(_add_loss, losses),
    )
    scores = test_scores(found.model, task, context.path(data) / "test.jsonl")
    values = found.values()
    if not keep:
        shutil.rmtree(found.path)
    kept = ("trainable_parameters", "parameters", "steps", "memory", "saved_bytes")
    before = values.get("language_model", {})  # ULMFiT's run on the texts alone
    return {
        "scores": scores,
        **{name: values[name] for name in kept},
        "seconds": values["seconds"] + before.get("seconds", 0.0),
        "learning_rate": found.config.training.optimizer.learning_rate,
        "train_loss": final_loss(losses),
        "notes": values["notes"],
    }


def finetune_on_cell(
    context: CellContext,
    *,
    model: File | str,
    task: str,
    data: Cell,
    labels: int,
    options: Mapping[str, Any],
    callback: Callback,
) -> FinetuneResult:
    """Fine-tune in the folder of a cell, with one validation at the end, which selects nothing."""
    overrides = {"validate_every": 1, "log_every": 1, **options.get("overrides", {})}
    return finetune(
        model if isinstance(model, str) else context.path(model),
        task=task,
        **finetune_inputs(context, data, labels),
        callback=callback,
        **{**options, "overrides": overrides},
        **context.run_options("run"),
    )


def finetune_inputs(context: CellContext, data: Cell, labels: int) -> dict[str, Any]:
    """Return the arguments of `finetune` for the examples, seed and device of a cell."""
    folder = context.path(data)
    return {
        "train": folder / "train.jsonl",
        "dev": folder / "dev.jsonl",
        "limit": labels,
        "seed": context.seed,
        "device": context.device,
    }


def _add_loss(losses: list[float], kind: str, metrics: Mapping[str, Any]) -> None:
    if kind == "step":
        losses.append(metrics["loss"])


def final_loss(losses: Sequence[float]) -> float | None:
    """Return the mean loss of the last tenth of the steps; None if nothing was trained.

    >>> final_loss([0.9] * 18 + [0.2, 0.4])
    0.3
    """
    count = max(1, len(losses) // 10)
    return round(fmean(losses[-count:]), 6) if losses else None


def test_scores(model: Any, task: str, file: Path) -> dict[str, Any]:
    """Score the predictions of a fine-tuned model for each test example."""
    chosen, metadata = resolve_task(model, task)
    examples = list(good_examples(chosen.read, TaskFile(file)))
    answers, _ = ensemble_answers([model], chosen, [metadata], examples)
    return example_scores(task, examples, answers)


def example_scores(
    task: str, examples: Sequence[Example], answers: Sequence[Answer]
) -> dict[str, Any]:
    """Return the score of a task, with its numerator and denominator for each example."""
    metric, score = scoring(task, examples)
    pairs = [score(*pair) for pair in zip(examples, answers, strict=True)]
    tops, bottoms = zip(*pairs, strict=True)
    return {metric: score_values(tops, bottoms)}


def scoring(task: str, examples: Sequence[Example]) -> tuple[str, Score]:
    """Return the metric of a task and the function that scores an example."""
    if task == "tag" and not _has_entities(examples):
        return "accuracy", _words_right
    if task not in SCORES:
        raise UsageError(f"Studies cannot score {task} yet; there are {', '.join(SCORES)}.")
    return SCORES[task]


def metric_of(task: str, test: Path) -> str:
    """Return the name of the score of a task file."""
    return scoring(task, list(good_examples(task_named(task).read, TaskFile(test))))[0]


def _right_label(example: Any, answer: Answer) -> tuple[float, float]:
    if "labels" in answer:
        return float(set(answer["labels"]) == set(example.label)), 1.0
    return float(answer["label"] == example.label), 1.0


def _right_choice(example: Any, answer: Answer) -> tuple[float, float]:
    return float(answer["choice"] == example.label), 1.0


def _entity_f1(example: Any, answer: Answer) -> tuple[float, float]:
    """F1 is 2 tp over the number of predicted and true entities."""
    true, predicted = set(read_entities(example.tags)), set(read_entities(answer["tags"]))
    return 2.0 * len(true & predicted), float(len(true) + len(predicted))


def _words_right(example: Any, answer: Answer) -> tuple[float, float]:
    right = sum(a == b for a, b in zip(example.tags, answer["tags"], strict=True))
    return float(right), float(len(example.tags))


def _answer_f1(example: Any, answer: Answer) -> tuple[float, float]:
    gold = [one.text for one in example.answers]
    return score_answer(gold, answer["answer"], version_2=not gold)[1], 1.0


def _same_text(example: Any, answer: Answer) -> tuple[float, float]:
    """Compare texts without case and white space, which tokenizers may change."""
    target, text = (" ".join(one.casefold().split()) for one in (example.target, answer["text"]))
    return float(target == text), 1.0


SCORES: dict[str, tuple[str, Score]] = {
    "classify": ("accuracy", _right_label),
    "pair": ("accuracy", _right_label),
    "choice": ("accuracy", _right_choice),
    "tag": ("f1", _entity_f1),
    "span": ("f1", _answer_f1),
    "seq2seq": (EXACT_MATCH, _same_text),
}


def _has_entities(examples: Sequence[Any]) -> bool:
    tags = {tag for example in examples for tag in example.tags}
    return all(tag == "O" or tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for tag in tags)


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a task file of `split_task_data`."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
