"""What a model's answers to a file of examples are worth, or how likely it finds a text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from firth.asking import Progress, answers_of, open_model, work_of
from firth.errors import InputError, Misuse
from firth.metrics.bootstrap import Figure, plain_figures
from firth.model import Model
from firth.objectives.table import fills
from firth.tasks.material import check_columns
from firth.tasks.scoring import Asking, Measured, Parts, Scorer
from firth.tasks.table import MEASURES


@dataclass(frozen=True)
class Evaluation:
    """What a model's answers are worth."""

    task: str
    n: int
    figures: Mapping[str, Figure]
    seconds: float
    parts: Parts = field(default_factory=dict)  # by type of entity, by set of pairs
    notes: list[str] = field(default_factory=list)
    groups: dict[str, Parts] = field(default_factory=dict)  # the same by larger kinds
    details: dict[str, Any] = field(default_factory=dict)  # what was counted, and how

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "task": self.task,
            "n": self.n,
            "metrics": plain_figures(self.figures),
            "seconds": self.seconds,
            "parts": {part: plain_figures(row) for part, row in self.parts.items()},
            "groups": {
                kind: {part: plain_figures(row) for part, row in parts.items()}
                for kind, parts in self.groups.items()
            },
            "details": self.details,
            "notes": self.notes,
        }


def evaluate(
    model: str | Path | Model,
    *,
    data: str | Path,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    limit: int = 0,
    convention: str = "",
    context: int = 0,
    stride: int = 0,
    by_word: bool = False,
    weights: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, there: None,
) -> Evaluation:
    """How well a model does its task on the examples of a file; of `limit`, only the first.

    Without a `task`, it is the one that the model was taught. Any language model can be measured:
    `lm` (by a `convention`, through a window of `context` tokens that slides by `stride`),
    `last-word`, and `minimal-pairs` of a file or folder (`by_word`: a masked model hides the rest
    of a word with each of its tokens). `weights="int8"`: as well as it does with those.
    """
    begun = time.monotonic()
    opened = open_model(model, device, weights=weights)
    name = task or (opened.task.task if opened.task is not None else "")
    options = dict(convention=convention, context=context, stride=stride, by_word=by_word)
    _check_options(name, options)
    asking = Asking(
        data=data,
        format=format,
        columns=columns or {},
        limit=limit,
        convention=convention,
        context=context,
        stride=stride,
    )
    if task in MEASURES or any(options.values()):  # else as it was taught, which lm can be, too
        scorer = _scorer(opened, by_word, progress, copy=isinstance(model, Model))
        found = _measured(name, scorer, asking)
    else:
        found = _answered(opened, task, asking, progress)
    return Evaluation(
        task=name,
        n=found.n,
        figures=found.figures,
        seconds=time.monotonic() - begun,
        parts=found.parts,
        notes=found.notes,
        groups=found.groups,
        details=found.details | ({"weights": weights} if weights else {}),
    )


def _check_options(task: str, options: Mapping[str, Any]) -> None:
    """Refuse what has no meaning for a task."""
    known = MEASURES[task].options if task in MEASURES else ()
    for name, value in options.items():
        if value and name not in known:
            homes = ", ".join(key for key, row in MEASURES.items() if name in row.options)
            raise Misuse(f"--{name.replace('_', '-')} is for --task {homes}.")


def _answered(model: Model, task: str | None, asking: Asking, progress: Progress) -> Measured:
    """The answers of a model that was taught a task, and what they are worth."""
    chosen, facts = work_of(model, task)
    check_columns(chosen.name, chosen.roles, asking.columns)
    examples = chosen.read(asking.data, format=asking.format, columns=asking.columns)
    examples = examples[: asking.limit or None]
    if not examples:
        raise InputError(f"{asking.data} holds no examples.")
    chosen.check(facts, examples, Path(asking.data))
    answers, notes = answers_of([model], chosen, [facts], examples, progress)
    parts = chosen.parts(examples, answers, facts)
    figures = chosen.figures(examples, answers, facts)
    return Measured(n=len(examples), figures=figures, parts=parts, notes=notes)


def _measured(name: str, scorer: Scorer, asking: Asking) -> Measured:
    """How a model does in what is only measured."""
    row = MEASURES[name]
    check_columns(name, row.roles, asking.columns)
    if Path(asking.data).is_dir() and not row.folders:
        raise InputError(
            f"{asking.data} is a folder; name a file in it, or measure all with --suite."
        )
    return row.run(scorer, asking)


def _scorer(model: Model, by_word: bool, progress: Progress, copy: bool) -> Scorer:
    """A model that scores texts, in 32 bits: near ties are lost in fewer."""
    network = model.network
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        network = (deepcopy(network) if copy else network).float()
    return Scorer(
        network=network,
        tokenizer=model.tokenizer_needed(),
        hybrid=fills(model.objective) == "masks",
        by_word=by_word,
        name=str(model.source or model.path or "The model"),
        progress=progress,
    )
