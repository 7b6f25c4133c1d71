"""Study: which learning rates fine-tune, and what breaks when they are too low or too high?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from firth.metrics.bootstrap import to_json
from firth.model import load
from firth.study.cells.finetuning_cells import read_rows
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import metric_texts
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.finetuning_grid import FinetuningGrid, FinetuningSettings, finetuning_grid
from firth.study.learning_rate_findings import RateFound, rate_findings
from firth.tasks.finetune_recipes import recipe_for, recipe_learning_rate
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError
from firth.utils.figures import DataTable, LineChart, Point

AT_CHANCE = 0.95  # of the loss of guessing: from here on a run has learned nothing


@dataclass(frozen=True, kw_only=True)
class LearningRateSettings(FinetuningSettings):
    """Settings of the study; factors multiply the learning rate of the recipe."""

    factors: Annotated[
        tuple[float, ...], Doc("Factors of the recipe's learning rate.", min=1e-6)
    ] = (
        0.01,
        0.03,
        0.1,
        0.3,
        1.0,
        3.0,
        10.0,
        30.0,
        100.0,
    )
    strategy: Annotated[str, Doc("Strategy of fine-tuning.")] = "full"
    margin: Annotated[float, Doc("A score that is lower by less counts as the same.", min=0)] = 0.02


def run_learning_rate(run: StudyRun) -> StudyAnalysis:
    """Fine-tune with learning rates from far below to far above the recipe's."""
    settings: LearningRateSettings = run.settings
    factors = sorted({*settings.factors, 1.0})
    if factors[0] <= 0:
        raise UsageError(f"factors must be positive, not {factors[0]:g}.")
    grid = finetuning_grid(run)
    config = load(grid.model).network.config
    rate = recipe_learning_rate(recipe_for(grid.task, None)[1], config, settings.strategy)
    runs = {factor: _cells(grid, settings.strategy, factor, rate) for factor in factors}
    results = run.run(cell for cells in runs.values() for cell in cells)
    guess = guessing_loss(run.cache.files(grid.data) / "train.jsonl")
    found = {
        factor: _found(results, cells, grid.metric, factor * rate, guess)
        for factor, cells in runs.items()
    }
    return StudyAnalysis(
        rows=[_row(factor, one, grid.metric) for factor, one in found.items()],
        findings=rate_findings(found, settings.margin),
        figures=(_chart(found, grid.metric), _losses(found, guess), _table(found, grid.metric)),
        notes=_notes(grid, settings, rate, guess),
    )


def _cells(grid: FinetuningGrid, strategy: str, factor: float, rate: float) -> list[Cell]:
    changed = {} if factor == 1 else {"learning_rate": float(f"{factor * rate:.4g}")}
    return grid.cells(f"{factor:g} times the rate", grid.options(strategy, **changed))


def _found(
    results: Results, cells: Sequence[Cell], metric: str, rate: float, guess: float | None
) -> RateFound:
    losses = [value["train_loss"] for value in results.values_of(cells)]
    ended = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    chance = math.inf if guess is None else AT_CHANCE * guess
    return RateFound(
        learning_rate=rate,
        scores=results.scores(cells, metric),
        train_loss=fmean(ended) if ended else None,
        failed=len(cells) - sum(loss < chance for loss in ended),
        runs=len(cells),
        error=results.first_error(cells),
    )


def guessing_loss(file: Path) -> float | None:
    """Compute the loss of predicting the labels' frequencies; None for a task without labels."""
    rows = read_rows(file)
    if "tags" in rows[0]:
        labels = [tag for row in rows for tag in row["tags"]]
    elif isinstance(rows[0].get("label"), str):
        labels = [row["label"] for row in rows]
    else:
        return None
    fractions = [count / len(labels) for count in Counter(labels).values()]
    return -sum(fraction * math.log(fraction) for fraction in fractions)


def _row(factor: float, one: RateFound, metric: str) -> dict[str, Any]:
    scored = {}
    if one.scores is not None:
        by_seed = one.scores.by_seed.tolist()
        scored = {metric: to_json(one.scores.metric()), "by_seed": by_seed}
    return {
        "factor": factor,
        "learning_rate": one.learning_rate,
        **scored,
        "train_loss": one.train_loss,
        "failed": one.failed,
        "runs": one.runs,
        **({"error": one.error} if one.error else {}),
    }


def _notes(
    grid: FinetuningGrid, settings: LearningRateSettings, rate: float, guess: float | None
) -> tuple[str, ...]:
    notes = [
        f"{grid.labels:,} labels, {grid.steps} steps, strategy {settings.strategy}; the recipe's "
        f"learning rate is {rate:.3g} for this model."
    ]
    if guess is not None:
        notes.append(
            f"A run has failed if its loss is not finite, or at the end above {AT_CHANCE:g} times "
            f"that of guessing ({guess:.3f})."
        )
    return tuple(notes)


# ---- figures


def _chart(found: Mapping[float, RateFound], metric: str) -> LineChart:
    points = []
    for one in found.values():
        if one.scores is not None:
            value = one.scores.metric()
            points.append(Point(one.learning_rate, value.value, value.low, value.high))
    return LineChart(
        "Score and learning rate",
        "learning rate",
        metric,
        {metric: tuple(points)},
        log_x=True,
        caption="Means over seeds; the bars are 95 % intervals that resample seeds and examples. "
        f"The recipe's rate is {found[1.0].learning_rate:.3g}.",
    )


def _losses(found: Mapping[float, RateFound], guess: float | None) -> LineChart:
    rates = [one.learning_rate for one in found.values()]
    lines = {
        "training loss": tuple(
            Point(one.learning_rate, one.train_loss)
            for one in found.values()
            if one.train_loss is not None
        )
    }
    if guess is not None:
        lines["guessing"] = (Point(rates[0], guess), Point(rates[-1], guess))
    title = "Training loss at the end"
    return LineChart(title, "learning rate", "loss", lines, log_x=True)


def _table(found: Mapping[float, RateFound], metric: str) -> DataTable:
    columns = ("factor", "learning rate", metric, "95 % interval", "training loss", "failed runs")
    return DataTable("", columns, tuple(_table_row(*item) for item in found.items()))


def _table_row(factor: float, one: RateFound) -> tuple[str, ...]:
    scored = ("", one.error) if one.scores is None else metric_texts(one.scores.metric())
    return (
        f"{factor:g}",
        f"{one.learning_rate:.2g}",
        *scored,
        "" if one.train_loss is None else f"{one.train_loss:.3f}",
        f"{one.failed} of {one.runs}",
    )


STUDY = Study(
    name="learning-rate",
    question="Which learning rates fine-tune, and what breaks when they are too low or too high?",
    settings=LearningRateSettings,
    run=run_learning_rate,
    takes=("data", "test", "task", "models"),
    medium={"labels": 1000, "max_steps": 600, "test_size": 1000},
    large={"labels": 10_000, "max_steps": 2000, "test_size": 2000},
)
