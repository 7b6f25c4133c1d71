"""Study: how much language modelling does fine-tuning forget, and what avoids it?

Measured before and after fine-tuning: the loss of the pre-training objective on held-out text, and
another task, the topic of stories, by logistic regression on mean-pooled hidden states. Its head is
fitted before fine-tuning (old) and used after it, or fitted again (new).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from firth.metrics.bootstrap import to_json
from firth.model import load
from firth.models.language_model import predicts_tokens
from firth.study.cells.forgetting_cells import (
    LOSS,
    NEW_HEAD,
    OLD_HEAD,
    after_finetuning,
    before_finetuning,
    language_texts,
)
from firth.study.cells.input_cells import split_task_data, stories
from firth.study.engine.cell import Cell
from firth.study.engine.statistics import Scores, metric_texts
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.finetuning_grid import FinetuningGrid, FinetuningSettings, finetuning_grid
from firth.study.forgetting_findings import BEFORE, FULL, HIGH_RATE, forgetting_findings
from firth.tasks.finetune_recipes import expand_strategies, recipe_for, recipe_learning_rate
from firth.training.config import FinetuneTrainingConfig
from firth.utils.config_fields import Doc
from firth.utils.errors import MismatchError, UsageError
from firth.utils.figures import DataTable, LineChart, Point

MAX_LOSS = 700.0  # nats whose exponential is still a float
REPLAY = "replay"
LOW_RATE = "learning rate / 10"
# method: its strategy, the factor of the learning rate, whether text is replayed
METHODS = {
    FULL: ("full", 1.0, False),
    REPLAY: ("full", 1.0, True),
    "freeze half": ("freeze:half", 1.0, False),
    "LoRA": ("lora", 1.0, False),
    LOW_RATE: ("full", 0.1, False),
    HIGH_RATE: ("full", 10.0, False),
}
Found = Mapping[str, Mapping[str, Scores]]  # method: metric: scores


@dataclass(frozen=True, kw_only=True)
class ForgettingSettings(FinetuningSettings):
    """Settings of the study."""

    methods: Annotated[tuple[str, ...], Doc("Methods that are compared.")] = tuple(METHODS)
    passages: Annotated[
        int, Doc("Held-out passages on which the language modelling loss is measured.", min=1)
    ] = 30
    replayed: Annotated[int, Doc("Passages of text that are replayed.", min=1)] = 200
    other_labels: Annotated[int, Doc("Training examples of the other task.", min=1)] = 100
    other_test: Annotated[int, Doc("Test examples of the other task.", min=1)] = 100


def run_forgetting(run: StudyRun) -> StudyAnalysis:
    """Measure language modelling and another task before and after fine-tuning."""
    for name in run.settings.methods:
        if name not in METHODS:
            raise UsageError(f"There is no method {name!r}; there are {', '.join(METHODS)}.")
    grid = finetuning_grid(run)
    if not predicts_tokens(load(grid.model).network):
        raise MismatchError(
            f"{grid.model} has no language head, so that its language modelling cannot be "
            "measured; use a model that was only pre-trained."
        )
    before = _before(run, grid)
    runs = {
        name: _cells(run, grid, name, before)
        for name in dict.fromkeys((FULL, *run.settings.methods))
    }
    results = run.run([before, *(cell for cells in runs.values() for cell in cells)])
    cells = {BEFORE: [before] * len(run.seeds), **runs}
    metrics = (grid.metric, LOSS, OLD_HEAD, NEW_HEAD)
    found = {
        name: {
            metric: scores
            for metric in (metrics[1:] if name == BEFORE else metrics)
            if (scores := results.scores(own, metric)) is not None
        }
        for name, own in cells.items()
    }
    errors = {name: results.first_error(own) for name, own in cells.items()}
    kept = {name: one for name, one in found.items() if one}
    return StudyAnalysis(
        rows=[_row(name, found[name], errors[name]) for name in cells],
        findings=forgetting_findings(kept, grid.metric),
        figures=(_chart(kept, grid.metric), _table(kept, grid.metric)),
        notes=(
            f"{grid.labels:,} labels, {grid.steps} steps; replayed text adds steps. The other task "
            "is the topic of stories.",
        ),
    )


def _before(run: StudyRun, grid: FinetuningGrid) -> Cell:
    settings: ForgettingSettings = run.settings
    folder, given = stories(), run.inputs.text
    texts = Cell(
        language_texts,
        {
            "text": given or folder / "train.txt",
            "held_out": None if given else folder / "dev.txt",
            "measured": settings.passages,
            "replayed": settings.replayed,
        },
        name="texts",
    )
    files = {"data": folder / "topic/train.tsv", "test": folder / "topic/test.tsv"}
    split = {"task": "classify", **files, "test_size": settings.other_test, "columns": {}}
    measured = {
        "model": grid.model,
        "texts": texts,
        "other": Cell(split_task_data, split, name="topics"),
        "labels": settings.other_labels,
    }
    return Cell(before_finetuning, measured, name="before fine-tuning")


def _cells(run: StudyRun, grid: FinetuningGrid, name: str, before: Cell) -> list[Cell]:
    strategy, factor, replay = METHODS[name]
    config = load(grid.model).network.config
    (strategy,) = expand_strategies([strategy], config)
    changed: dict[str, Any] = {}
    if factor != 1:
        rate = recipe_learning_rate(recipe_for(grid.task, None)[1], config, strategy)
        changed["learning_rate"] = float(f"{factor * rate:.4g}")
    if replay:  # as many steps on the task as without
        every = FinetuneTrainingConfig().replay_every
        changed["overrides"] = {"steps": grid.steps + grid.steps // every}
    settings = grid.settings(grid.options(strategy, **changed))
    return run.with_seeds(after_finetuning, name, **settings, replay=replay, before=before)


def _row(name: str, one: Mapping[str, Scores], error: str) -> dict[str, Any]:
    metrics = {metric: to_json(scores.metric()) for metric, scores in one.items()}
    return {"method": name, **metrics, **({"error": error} if error else {})}


def _chart(found: Found, metric: str) -> LineChart:
    lines: dict[str, tuple[Point, ...]] = {}
    for name, one in found.items():
        if metric in one:
            loss, score = one[LOSS].metric(), one[metric].metric()
            lines[name] = (Point(loss.value, score.value, score.low, score.high),)
    before = found[BEFORE][LOSS].value
    return LineChart(
        "Score and language modelling loss after fine-tuning",
        "language modelling loss (nats)",
        metric,
        lines,
        log_x=True,
        caption=f"Before fine-tuning the loss is {before:.3f}. The bars are 95 % intervals of the "
        "score that resample seeds and examples.",
    )


def _table(found: Found, metric: str) -> DataTable:
    columns = ("method", metric, "95 % interval", "LM loss", "95 % interval", "perplexity")
    rows = []
    for name, one in found.items():
        task = metric_texts(one[metric].metric()) if metric in one else ("", "")
        loss = one[LOSS].metric()
        others = tuple(f"{one[key].value:.3f}" for key in (OLD_HEAD, NEW_HEAD))
        rows.append((name, *task, *metric_texts(loss), _perplexity(loss.value), *others))
    return DataTable("", (*columns, OLD_HEAD, NEW_HEAD), tuple(rows))


def _perplexity(loss: float) -> str:
    """Format the perplexity of a loss; that of a model that is destroyed may be no float.

    >>> _perplexity(0.0), _perplexity(800.0)
    ('1.000', '–')
    """
    return f"{math.exp(loss):.3f}" if loss < MAX_LOSS else "–"


STUDY = Study(
    name="forgetting",
    question="How much language modelling does fine-tuning forget, and what avoids it?",
    settings=ForgettingSettings,
    run=run_forgetting,
    takes=("data", "test", "task", "text", "models"),
    medium={"labels": 1000, "max_steps": 600, "test_size": 1000, "passages": 200},
    large={"labels": 10_000, "max_steps": 2000, "test_size": 2000, "passages": 1000},
)
