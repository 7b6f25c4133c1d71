"""Sweeps of fine-tuning runs: seeds, hyperparameter search, strategies."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.job_configs import FinetuneConfig
from firth.jobs.task_models import find_task_model
from firth.model import load
from firth.models.presets.task_models import TaskSpecificModel
from firth.tasks.finetune_recipes import depth, expand_strategies, network_lr_factor
from firth.tasks.registry import task_named
from firth.tasks.task import selection_metric
from firth.training.log import Callback, Metrics
from firth.training.loop import Diverged
from firth.training.model_card import write_model_card
from firth.training.run_directory import LOCK, RUN, read_run
from firth.utils.errors import FirthError, InputError, Interrupted, UsageError
from firth.utils.files import write_json
from firth.utils.torchrun import launched_by_torchrun

# The course's grid: learning rates, batch sizes, frozen blocks.
LEARNING_RATES, BATCH_SIZES, FROZEN_BLOCKS = (2e-5, 3e-5, 5e-5), (16, 32), (0, 6, 8)
SELECTED = {"seeds": "seed", "search": "hyperparameters", "strategies": "strategy"}
LOWER_IS_BETTER = ("perplexity",)


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    result: FinetuneResult | None  # None: it failed
    why: str = ""  # the error of a failed run

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        own = self.result.values() if self.result is not None else {"why": self.why}
        return {"name": self.name, **own}


@dataclass(frozen=True)
class SweepResult:
    """The runs of a sweep and the metric that compares them."""

    kind: str  # seeds, search or strategies
    metric: str
    runs: list[SweepRun]
    best: str  # the name of the best one
    notes: list[str] = field(default_factory=list)
    selected_on: list[str] = field(default_factory=list)  # what the dev examples selected

    @property
    def done(self) -> list[tuple[SweepRun, FinetuneResult]]:
        """The runs that finished."""
        return [(trial, trial.result) for trial in self.runs if trial.result is not None]

    def mean(self) -> dict[str, tuple[float, float]]:
        """The mean and standard deviation of every metric over the runs."""
        runs = [result.metrics for _, result in self.done]
        names = runs[0] if runs else {}
        found = {name: [metrics[name].value for metrics in runs] for name in names}
        return {
            name: (statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
            for name, values in found.items()
        }

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "kind": self.kind,
            "metric": self.metric,
            "best": self.best,
            "mean": {name: {"mean": m, "deviation": d} for name, (m, d) in self.mean().items()},
            "runs": [trial.values() for trial in self.runs],
            "selected_on": self.selected_on,
            "notes": self.notes,
        }


def seeds(count: int, out: str | Path, *, seed: int = 0, **options: Any) -> SweepResult:
    """Repeat a run with several seeds, each in a subdirectory of `out`."""
    rows = [(f"seed-{seed + i}", {"seed": seed + i}) for i in range(count)]
    return _run("seeds", rows, Path(out), options)


def search(out: str | Path, *, minutes: float = 0.0, **options: Any) -> SweepResult:
    """Grid search over learning rate, batch size and frozen blocks; the best run becomes `out`.

    Learning rates are scaled to the model's hidden size and frozen blocks to its depth, as in
    recipes. No run starts after `minutes`.
    """
    given = options.get("overrides") or {}
    for name in ("learning_rate", "batch_size"):
        if name in given or options.get(name) is not None:
            raise UsageError(f"The search sets {name} itself; remove {name}.")
    _check_empty(Path(out))
    rates, depths = _grid(options)
    rows = [
        (
            f"lr={rate:.1e},batch_size={size},freeze={frozen}",
            {"learning_rate": rate, "batch_size": size}
            | {"strategy": f"freeze:{frozen}" if frozen else "full"},
        )
        for rate, size, frozen in product(rates, BATCH_SIZES, depths)
    ]
    folder = Path(out) / "search"
    swept = _run("search", rows, folder, options, minutes=minutes)
    _promote(folder, swept, Path(out))
    return swept


def _grid(options: Mapping[str, Any]) -> tuple[list[float], list[int]]:
    """Return the learning rates and the numbers of frozen blocks of a search.

    A task-specific model has its own learning rate in place of the middle one, and nothing to
    freeze.
    """
    if (row := _task_model(options)) is None:
        config = load(options["model"]).config
        depths = list(dict.fromkeys(frozen * depth(config) // 12 for frozen in FROZEN_BLOCKS))
        return [rate * network_lr_factor(config) for rate in LEARNING_RATES], depths
    if row.strategy == "probe":
        raise UsageError(f"{options['model']} is fitted without a learning rate: omit --search.")
    return [rate / LEARNING_RATES[1] * row.learning_rate for rate in LEARNING_RATES], [0]


def _task_model(options: Mapping[str, Any]) -> TaskSpecificModel | None:
    """Return the row of a task-specific model, if the model is the name of one."""
    names = {each.name for each in fields(FinetuneConfig)}
    given = {name: value for name, value in options.items() if name in names}
    return find_task_model(FinetuneConfig(**given))


def strategies(names: Sequence[str], out: str | Path, **options: Any) -> SweepResult:
    """Repeat a run with several strategies, each in a subdirectory of `out`."""
    row = _task_model(options)
    if row is not None and list(names) == ["all"]:
        names = ["full", "probe"]  # the others are for the blocks of a Transformer
    config = load(options["model"]).config if row is None else row.config
    specs = expand_strategies(names, config)
    rows = [(spec.replace(":", "-").replace(",", "-"), {"strategy": spec}) for spec in specs]
    return _run("strategies", rows, Path(out), options)


def _run(
    kind: str,
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    out: Path,
    options: Mapping[str, Any],
    minutes: float = 0.0,
) -> SweepResult:
    if launched_by_torchrun():
        raise UsageError("Several runs need one process: omit torchrun, or start them one by one.")
    _check_empty(out)
    seen_notes: set[str] = set()
    failures = FirthError if kind == "strategies" else Diverged
    begun, notes = time.monotonic(), []
    trials: list[SweepRun] = []
    for name, overrides in rows:
        if minutes and trials and time.monotonic() - begun > 60 * minutes:
            notes.append(
                f"The {minutes:g} minutes were over after {len(trials)} of {len(rows)} runs."
            )
            break
        try:
            forward = partial(_forward, options.get("callback"), name, seen_notes)
            result = finetune(out=out / name, **{**options, **overrides, "callback": forward})
            result.model.network.to("meta")  # free its memory; the weights are on disk
            trials.append(SweepRun(name, result))
        except InputError:  # would affect all runs
            raise
        except Interrupted as error:
            raise Interrupted(
                f"Interrupted after {len(trials)} of {len(rows)} runs, which are in {out}; several "
                "runs cannot be resumed, so choose another directory to start again."
            ) from error
        except failures as error:
            trials.append(SweepRun(name, None, str(error)))
    done = {trial.name: trial.result for trial in trials if trial.result is not None}
    if not done:
        raise FirthError(f"All runs in {out} failed. {trials[0].why}")
    first = next(iter(done.values()))
    config, metrics = first.config, first.metrics
    metric = selection_metric(
        task_named(config.task), config.metadata, metrics, balance=config.balance
    )
    best = max(done, key=lambda name: _comparable(done[name].metrics[metric].value, metric))
    if len(done) > 1:
        trials = [_selected(trial, kind) if trial.name == best else trial for trial in trials]
    chosen = next(trial.result for trial in trials if trial.name == best)
    swept = SweepResult(kind, metric, trials, best, notes, chosen.selected_on if chosen else [])
    write_json(out / f"{kind}.json", swept.values())
    return swept


def _selected(trial: SweepRun, kind: str) -> SweepRun:
    """Record in the best run that the dev examples selected it."""
    assert trial.result is not None
    path, selected = trial.result.path, [*trial.result.selected_on, SELECTED[kind]]
    values = read_run(path)
    values["results"]["selected_on"] = selected
    write_json(path / RUN, values)
    write_model_card(path, values)
    return replace(trial, result=replace(trial.result, selected_on=selected))


def _check_empty(out: Path) -> None:
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty; a sweep needs an empty directory.")


def _forward(
    callback: Callback | None, name: str, seen_notes: set[str], kind: str, metrics: Metrics
) -> None:
    """Forward a run's events with its name; forward equal notes only once."""
    if callback is None or metrics.get("note") in seen_notes:
        return
    if kind == "note":
        seen_notes.add(metrics["note"])
    callback(kind, {**metrics, "run": name})


def _comparable(value: float, metric: str) -> float:
    """Make higher better for every metric."""
    if math.isnan(value):
        return -math.inf
    return -value if metric in LOWER_IS_BETTER else value


def _promote(folder: Path, swept: SweepResult, out: Path) -> None:
    """Copy the files of the best run to `out`."""
    shutil.copytree(
        folder / swept.best, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns(LOCK)
    )
    values = read_run(out)
    values["results"]["out"] = str(out)
    write_json(out / RUN, values)
    write_model_card(out, values)
