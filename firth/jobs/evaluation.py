"""Evaluation of a model on a file: task metrics, perplexity, minimal pairs, last words."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from firth.data.input_files import find_sources
from firth.data.memory import Data, as_source
from firth.data.readers import ReadOptions
from firth.jobs.selection import selections, training_data_note
from firth.metrics.bootstrap import to_json
from firth.model import AnyModel, Model, load_if_needed, model_list
from firth.objectives.registry import infill_format
from firth.tasks.choice import ChoiceTask
from firth.tasks.dataset import check_columns
from firth.tasks.diagnostics import check_answers
from firth.tasks.ensembles import (
    Progress,
    check_ensemble,
    ensemble_answers,
    resolve_task,
    truncation_note,
)
from firth.tasks.readers.columns import good_examples
from firth.tasks.readers.subsampling import stratified_sample
from firth.tasks.registry import SCORING_TASKS
from firth.tasks.scoring_task import Scorer, ScoringOptions, ScoringResult
from firth.tasks.task import Example, Task
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.config_fields import flag
from firth.utils.devices import Device, restored_torch_state
from firth.utils.errors import InputError, UsageError
from firth.utils.notebook import show_progress


@dataclass(frozen=True, kw_only=True)
class EvaluationResult(ScoringResult):
    """The metrics of a model or an ensemble on a task; of several models, one result for each."""

    task: str
    seconds: float
    models: dict[str, EvaluationResult] = field(default_factory=dict)  # several, by their names

    def __repr__(self) -> str:
        if self.models:
            return "\n".join(f"{name}: {found!r}" for name, found in self.models.items())
        named = list(self.metrics.items())[:3]
        metrics = ", ".join(
            f"{name} {metric.value:.4f} ({metric.interval})" for name, metric in named
        )
        return f"EvaluationResult({self.task}, {self.n:,} examples, {metrics})"

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        if not self.models:
            return {name: value for name, value in to_json(self).items() if name != "models"}
        rows = [{"model": name, **found.values()} for name, found in self.models.items()]
        return {"task": self.task, "n": self.n, "models": rows, "seconds": self.seconds}


@dataclass(frozen=True, kw_only=True)
class _EvaluationSetup:
    """What is evaluated on which examples, and how."""

    task: str | None
    options: ScoringOptions
    weights: str | None
    by_word: bool
    temperature: float | None
    device: Device
    progress: Progress

    def load(self, model: AnyModel) -> Model:
        return load_if_needed(model, self.device, weights=self.weights)

    def scoring_options(self) -> dict[str, Any]:
        """Return the options of evaluation-only tasks."""
        names = ("convention", "context", "stride")
        own = {"by_word": self.by_word, "temperature": self.temperature}
        return {name: getattr(self.options, name) for name in names} | own

    def result(self, task: str, found: ScoringResult) -> EvaluationResult:
        """Return the result, with notes on bad rows."""
        details = found.details | ({"weights": self.weights} if self.weights else {})
        changed = {"details": details, "notes": [*found.notes, *self.options.bad.notes]}
        return EvaluationResult(**{**vars(found), **changed}, task=task, seconds=0.0)


@check_arguments
@restored_torch_state()
def evaluate(
    model: AnyModel | Sequence[AnyModel],
    *,
    data: Data,
    task: str | None = None,
    ensemble: bool = False,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    limit: int = 0,
    convention: str = "",
    context: int = 0,
    stride: int = 0,
    by_word: bool = False,
    temperature: float | None = None,
    weights: str | None = None,
    strict: bool = False,
    device: Device = None,
    progress: Progress = show_progress,
) -> EvaluationResult:
    """Evaluate a model on examples (a file, a list of rows, a table), or on `limit` of them.

    Of a list of models, `result.models` has one result for each; with `ensemble`, their averaged
    predictions are evaluated instead. The sample keeps the proportions of the labels; without
    labels it is uniform; of tasks without training, such as `lm`, it is the first examples.
    The default task is the one that the model was fine-tuned on. Any language model can be
    evaluated on `lm` (perplexity by a `convention`, in windows of `context` tokens that move by
    `stride`), `last-word`, `choice` (unless it has a head for it, by the log-probability of each
    choice), and `minimal-pairs` of a file or folder (`by_word`: a masked model masks the rest of a
    word with each of its tokens; logits are divided by a `temperature`). Any model with hidden
    states can be evaluated on `similarity` and `analogies` of words. `weights="int8"` quantizes the
    model first. Bad rows are skipped and noted; with `strict`, they are an error.
    """
    start = time.monotonic()
    if temperature is not None and not 0 < temperature < math.inf:
        raise UsageError(f"--temperature must be a number above 0, not {temperature}.")
    if limit < 0:
        raise UsageError(f"--limit is a number of examples, or 0 for all, not {limit}.")
    how = _EvaluationSetup(
        task=task,
        options=ScoringOptions(
            data=as_source(data, "data"),
            format=format,
            columns=columns or {},
            limit=limit,
            convention=convention,
            context=context,
            stride=stride,
            bad=BadRows(SKIPPED, strict=strict),
        ),
        weights=weights,
        by_word=by_word,
        temperature=temperature,
        device=device,
        progress=progress,
    )
    several = model_list(model)
    if ensemble:
        found = _evaluate_ensemble(several, how)
    elif not isinstance(model, list | tuple):
        found = _evaluate_one(several[0], how)
    else:
        found = _evaluate_each(several, how)
    return replace(found, seconds=time.monotonic() - start)


def _evaluate_one(model: AnyModel, how: _EvaluationSetup) -> EvaluationResult:
    """Evaluate one model."""
    loaded = how.load(model)
    name = how.task or (loaded.task.task if loaded.task is not None else "")
    given = how.scoring_options()
    _check_options(name, given)
    # A fine-tuned lm model without options is evaluated on its own task, like any other.
    if _is_zero_shot(loaded, how.task) or any(given.values()):
        scorer = _scorer(loaded, how, copy=isinstance(model, Model))
        return how.result(name, _measured(name, scorer, how.options))
    return how.result(resolve_task(loaded, how.task)[0].name, _answered([loaded], how))


def _is_zero_shot(model: Model, task: str | None) -> bool:
    """Return whether the language head is evaluated, not a head that was trained for the task."""
    if task == ChoiceTask.name:
        return ChoiceTask.head not in model.network.heads
    return task in SCORING_TASKS


def _evaluate_each(models: Sequence[AnyModel], how: _EvaluationSetup) -> EvaluationResult:
    """Evaluate several models on the same data, one after the other."""
    options = how.options
    sources, _ = find_sources([options.data], ReadOptions(format=options.format or "txt"))
    if any(source.is_stream for source in sources):
        raise UsageError(
            f"{options.data} can be read only once: several models need the examples in a file."
        )
    found: dict[str, EvaluationResult] = {}
    for name, model in zip(_names(models), models, strict=True):
        begun = time.monotonic()
        bad = BadRows(SKIPPED, strict=options.bad.strict)
        one = _evaluate_one(model, replace(how, options=replace(options, bad=bad)))
        found[name] = replace(one, seconds=time.monotonic() - begun)
    first = next(iter(found.values()))
    return EvaluationResult(task=first.task, n=first.n, metrics={}, seconds=0.0, models=found)


def _evaluate_ensemble(models: Sequence[AnyModel], how: _EvaluationSetup) -> EvaluationResult:
    """Evaluate the averaged predictions of several models."""
    if len(models) < 2:
        raise UsageError("`ensemble` averages the predictions of several models; give two or more.")
    loaded = [how.load(model) for model in models]
    zero_shot = any(_is_zero_shot(model, how.task) for model in loaded)
    if zero_shot or any(how.scoring_options().values()):
        raise UsageError("`ensemble` is for models fine-tuned on a task, such as classify or tag.")
    found = replace(_answered(loaded, how), details={"ensemble": _names(models)})
    return how.result(resolve_task(loaded[0], how.task)[0].name, found)


def _names(models: Sequence[AnyModel]) -> list[str]:
    """Name each model by its path; equal names get a number.

    >>> _names(["runs/a", "runs/b", "runs/a"])
    ['runs/a', 'runs/b', 'runs/a (3)']
    """
    names: list[str] = []
    for number, model in enumerate(models, 1):
        where = (model.source or model.path) if isinstance(model, Model) else model
        name = str(where or f"model {number}")
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _check_options(task: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that the task does not have."""
    known = SCORING_TASKS[task].options if task in SCORING_TASKS else ()
    for name, value in options.items():
        if value and name not in known:
            homes = ", ".join(key for key, row in SCORING_TASKS.items() if name in row.options)
            raise UsageError(f"{flag(name)} is for --task {homes}.")


def _answered(models: Sequence[Model], how: _EvaluationSetup) -> ScoringResult:
    """Evaluate a fine-tuned model, or the averaged predictions of several, on their task."""
    resolved, options = [resolve_task(model, how.task) for model in models], how.options
    chosen, metadata = resolved[0][0], [known for _, known in resolved]
    if len(models) > 1:
        check_ensemble(chosen, models, metadata)
    check_columns(chosen.name, chosen.roles, options.columns)
    options = replace(options, data=as_source(options.data, "data", chosen.columns))
    read = chosen.with_known_labels(metadata[0], list(good_examples(chosen.read, options.file)))
    examples, notes = _sample(chosen, read, options.limit)
    chosen.check(metadata[0], examples, Path(str(options.data)))
    answers, cut = ensemble_answers(models, chosen, metadata, examples, how.progress)
    notes += [*truncation_note(cut, len(examples)), *check_answers(chosen, examples, answers)]
    selected: list[str] = []
    for model in models:
        found, why = selections(model, examples)
        selected += [what for what in found if what not in selected]
        notes += [*why, *training_data_note(model, options.data)]
    return ScoringResult(
        n=len(examples),
        metrics=chosen.metrics(examples, answers, metadata[0]),
        parts=chosen.parts(examples, answers, metadata[0]),
        selected_on=selected,
        notes=notes,
    )


def _sample(task: Task, examples: list[Example], limit: int) -> tuple[list[Example], list[str]]:
    """Sample at most `limit` examples; also return a note about the sample."""
    if not 0 < limit < len(examples):
        return examples, []
    strata = task.strata(examples)
    how = "stratified by label" if any(label is not None for label in strata) else "drawn uniformly"
    chosen, _ = stratified_sample(strata, count=limit)
    note = f"{limit:,} of {len(examples):,} examples, {how} (seed 0)."
    return [examples[i] for i in chosen], [note]


def _measured(name: str, scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Run an evaluation-only task."""
    row = SCORING_TASKS[name]
    check_columns(name, row.roles, options.columns)
    if Path(str(options.data)).is_dir() and not row.folders:
        raise InputError(
            f"{options.data} is a folder; name a file in it, or use --suite for all files."
        )
    data = as_source(options.data, "data", row.columns)
    found = row.run(scorer, replace(options, data=data))
    if not options.limit:
        return found
    note = f"At most the first {options.limit:,} examples of each file are used."
    return replace(found, notes=[*found.notes, note])


def _scorer(model: Model, how: _EvaluationSetup, copy: bool) -> Scorer:
    """Make a scorer in 32 bits, since lower precision loses near ties."""
    network = model.network
    if any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        network = (deepcopy(network) if copy else network).float()
    return Scorer(
        network=network,
        tokenizer=model.require_tokenizer(),
        hybrid=infill_format(model.objective) == "masks",
        denoises=model.config.architecture == "decoder"
        and infill_format(model.objective) == "spans",
        encoder_tokenizer=model.require_encoder_tokenizer(),
        sentence=model.sentence_encoder,
        by_word=how.by_word,
        temperature=how.temperature or 1.0,
        name=str(model.source or model.path or "The model"),
        progress=how.progress,
    )
