"""Evaluation of a model on a file: task metrics, perplexity, minimal pairs, last words."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from firth.data.memory import Data, as_source
from firth.jobs.parent_models import AnyModel
from firth.metrics.bootstrap import to_json
from firth.model import Model, load_if_needed
from firth.objectives.registry import infill_format
from firth.tasks.dataset import check_columns
from firth.tasks.ensembles import Progress, ensemble_answers, resolve_task, truncation_note
from firth.tasks.readers.subsampling import stratified_sample
from firth.tasks.registry import SCORING_TASKS, TASKS
from firth.tasks.scoring_task import Scorer, ScoringOptions, ScoringResult
from firth.utils.config_fields import flag
from firth.utils.errors import InputError, UsageError


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(ScoringResult):
    """The metrics of a model on a task."""

    task: str
    seconds: float

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return to_json(self)


def evaluate(
    model: AnyModel,
    *,
    data: Data,
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
    progress: Progress = lambda what, done, total: None,
) -> EvaluationResult:
    """Evaluate a model on examples (a file, a list of rows, a table), or on `limit` of them.

    The sample keeps the proportions of the labels; of `lm`, `last-word` and `minimal-pairs` it is
    the first examples.
    The default task is the one that the model was fine-tuned on. Any language model can be
    evaluated on `lm` (perplexity by a `convention`, in windows of `context` tokens that move by
    `stride`), `last-word`, and `minimal-pairs` of a file or folder (`by_word`: a masked model masks
    the rest of a word with each of its tokens). `weights="int8"` quantizes the model first.
    """
    start = time.monotonic()
    loaded = load_if_needed(model, device, weights=weights)
    name = task or (loaded.task.task if loaded.task is not None else "")
    given = dict(convention=convention, context=context, stride=stride, by_word=by_word)
    _check_options(name, given)
    row = SCORING_TASKS.get(name) or TASKS.get(name)
    options = ScoringOptions(
        data=as_source(data, "data", row.columns if row is not None else "text"),
        format=format,
        columns=columns or {},
        limit=limit,
        convention=convention,
        context=context,
        stride=stride,
    )
    # A fine-tuned lm model without options is evaluated on its own task, like any other.
    if task in SCORING_TASKS or any(given.values()):
        scorer = _scorer(loaded, by_word, progress, copy=isinstance(model, Model))
        found = _measured(name, scorer, options)
    else:
        found = _answered(loaded, task, options, progress)
    details = found.details | ({"weights": weights} if weights else {})
    seconds = time.monotonic() - start
    return EvaluationResult(**{**vars(found), "details": details}, task=name, seconds=seconds)


def _check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that the task does not have."""
    known = SCORING_TASKS[task].options if task in SCORING_TASKS else ()
    for name, value in options.items():
        if value and name not in known:
            homes = ", ".join(key for key, row in SCORING_TASKS.items() if name in row.options)
            raise UsageError(f"{flag(name)} is for --task {homes}.")


def _answered(
    model: Model, task: str | None, options: ScoringOptions, progress: Progress
) -> ScoringResult:
    """Evaluate a fine-tuned model on its task."""
    chosen, metadata = resolve_task(model, task)
    check_columns(chosen.name, chosen.roles, options.columns)
    examples, notes = list(chosen.read(options.file)), []
    if 0 < options.limit < len(examples):
        notes.append(f"{options.limit:,} of {len(examples):,} examples, stratified by label.")
        sample, _ = stratified_sample(chosen.strata(examples), count=options.limit)
        examples = [examples[i] for i in sample]
    chosen.check(metadata, examples, Path(str(options.data)))
    answers, cut = ensemble_answers([model], chosen, [metadata], examples, progress)
    return ScoringResult(
        n=len(examples),
        metrics=chosen.metrics(examples, answers, metadata),
        parts=chosen.parts(examples, answers, metadata),
        notes=[*notes, *truncation_note(cut, len(examples))],
    )


def _measured(name: str, scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Run an evaluation-only task."""
    row = SCORING_TASKS[name]
    check_columns(name, row.roles, options.columns)
    if Path(str(options.data)).is_dir() and not row.folders:
        raise InputError(
            f"{options.data} is a folder; name a file in it, or use --suite for all files."
        )
    return row.run(scorer, options)


def _scorer(model: Model, by_word: bool, progress: Progress, copy: bool) -> Scorer:
    """Make a scorer in 32 bits, since lower precision loses near ties."""
    network = model.network
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        network = (deepcopy(network) if copy else network).float()
    return Scorer(
        network=network,
        tokenizer=model.require_tokenizer(),
        hybrid=infill_format(model.objective) == "masks",
        by_word=by_word,
        name=str(model.source or model.path or "The model"),
        progress=progress,
    )
