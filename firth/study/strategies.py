"""Study: what do fine-tuning strategies cost, and what do they score?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any

from firth.metrics.bootstrap import to_json
from firth.model import load
from firth.study.cells.cost_cells import estimated_cost
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import Difference, difference, holm, metric_texts
from firth.study.engine.study import Study, StudyAnalysis, StudyRun
from firth.study.finetuning_grid import FinetuningGrid, FinetuningSettings, finetuning_grid
from firth.study.strategy_findings import (
    FULL,
    PROBE,
    Found,
    StrategyFound,
    kind,
    strategy_findings,
)
from firth.tasks.finetune_recipes import depth, expand_strategies
from firth.utils.config_fields import Doc
from firth.utils.figures import DataTable, Figure, LineChart, Point

MEBIBYTE = 2**20
FAMILIES = {"freeze": "freeze", "full": "freeze", "lora": "LoRA"}  # strategies on one line


@dataclass(frozen=True, kw_only=True)
class StrategySettings(FinetuningSettings):
    """Settings of the study; freeze:half and freeze:all-but-one are fractions of the depth."""

    strategies: Annotated[
        tuple[str, ...],
        Doc(
            "Strategies of `firth finetune --strategy`; freeze:half and freeze:all-but-one are "
            "fractions of the depth."
        ),
    ] = (
        *(FULL, "freeze:half", "freeze:all-but-one", PROBE, "lora:1", "lora:4", "lora:16"),
        *("adapters", "prefix", "prompt", "bitfit", "ia3", "gradual"),
    )
    margin: Annotated[float, Doc("A score that is lower by less counts as the same.", min=0)] = 0.02


def run_strategies(run: StudyRun) -> StudyAnalysis:
    """Fine-tune with every strategy on the same examples, and estimate its memory and time."""
    names = _strategies(run)
    grid = finetuning_grid(run)
    runs = {name: grid.cells(name, grid.options(name)) for name in names}
    costs = {name: _cost(grid, name) for name in names}
    results = run.run([*costs.values(), *(cell for cells in runs.values() for cell in cells)])
    found = {
        name: one
        for name in names
        if (one := _found(results, runs[name], costs[name], grid.metric)) is not None
    }
    differences = holm(
        {
            name: difference(one.scores, found[FULL].scores)
            for name, one in found.items()
            if FULL in found and name != FULL
        }
    )
    errors = {name: results.first_error(cells) for name, cells in runs.items()}
    return StudyAnalysis(
        rows=_rows(found, differences, errors, grid.metric),
        findings=strategy_findings(found, differences, run.settings.margin),
        figures=_figures(found, differences, grid),
        notes=(f"{grid.labels:,} labels, {grid.steps} steps; every strategy with its recipe.",),
    )


def _strategies(run: StudyRun) -> list[str]:
    """Return the strategies with the model's numbers of blocks, and full fine-tuning first."""
    config = load(run.inputs.models[0] if run.inputs.models else "stories-encoder").network.config
    last = str(max(1, depth(config) - 1))
    wanted = [name.replace("all-but-one", last) for name in (FULL, *run.settings.strategies)]
    return list(dict.fromkeys(expand_strategies(wanted, config)))


def _cost(grid: FinetuningGrid, name: str) -> Cell:
    settings = grid.settings(grid.options(name))
    return Cell(estimated_cost, settings, name=f"{name}, memory and time", alone=True)


def _found(
    results: Results, cells: Sequence[Cell], cost: Cell, metric: str
) -> StrategyFound | None:
    scores, values = results.scores(cells, metric), results.values_of(cells)
    if scores is None:
        return None
    return StrategyFound(
        scores=scores,
        cost=results[cost].values,
        trainable=values[0]["trainable_parameters"],
        parameters=values[0]["parameters"],
        stored=fmean(value["saved_bytes"] for value in values),
        learning_rate=values[0].get("learning_rate"),
    )


def _rows(
    found: Found, differences: Mapping[str, Difference], errors: Mapping[str, str], metric: str
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, error in errors.items():
        if name not in found:
            rows.append({"strategy": name, "error": error})
            continue
        one, against = found[name], differences.get(name)
        compared = (
            {} if against is None else {"difference": to_json(against.metric), "p": against.p}
        )
        rows.append(
            {
                "strategy": name,
                metric: to_json(one.scores.metric()),
                "by_seed": one.scores.by_seed.tolist(),
                **compared,
                "trainable_parameters": one.trainable,
                "trainable_fraction": one.fraction,
                "learning_rate": one.learning_rate,
                "memory": one.cost.get("memory"),
                "memory_is_measured": one.cost.get("memory_is_measured"),
                "seconds": one.cost.get("seconds"),
                "stored_bytes": one.stored,
            }
        )
    return rows


# ---- figures


def _figures(
    found: Found, differences: Mapping[str, Difference], grid: FinetuningGrid
) -> tuple[Figure, ...]:
    return _chart(found, grid.metric), _table(found, differences, grid.metric)


def _chart(found: Found, metric: str) -> LineChart:
    lines: dict[str, list[Point]] = {}
    for name, one in found.items():
        value = one.scores.metric()
        point = Point(max(1, one.trainable), value.value, value.low, value.high)
        alone = name == FULL and not any(kind(other) == "freeze" for other in found)
        family = name if alone else FAMILIES.get(kind(name), name)
        lines.setdefault(family, []).append(point)
    return LineChart(
        "Score and trainable parameters",
        "trainable parameters",
        metric,
        {name: tuple(sorted(points)) for name, points in lines.items()},
        log_x=True,
        caption="Means over seeds, with 95 % intervals that resample seeds and examples. "
        "The line of freezing ends at full fine-tuning; that of LoRA has its ranks.",
    )


def _table(found: Found, differences: Mapping[str, Difference], metric: str) -> DataTable:
    measured = any(one.cost.get("memory_is_measured") for one in found.values())
    how = "measured" if measured else "estimated from tensors"
    columns = (
        *("strategy", metric, "95 % interval", "against full", "p (Holm)", "trainable", "of all"),
        *(f"memory, {how}", "seconds", "stored"),
    )
    rows = tuple(_table_row(name, one, differences.get(name)) for name, one in found.items())
    return DataTable("Scores and costs", columns, rows)


def _table_row(name: str, one: StrategyFound, against: Difference | None) -> tuple[str, ...]:
    compared = ("", "")
    if against is not None:
        compared = f"{100 * against.metric.value:+.1f}", f"{against.p:.3f}"
    memory, seconds = one.cost.get("memory"), one.cost.get("seconds")
    return (
        name,
        *metric_texts(one.scores.metric()),
        *compared,
        f"{one.trainable:,}",
        f"{100 * one.fraction:.3g} %",
        "" if memory is None else f"{memory / MEBIBYTE:.1f} MiB",
        "" if seconds is None else f"{seconds:.1f}",
        f"{one.stored / MEBIBYTE:.2f} MiB",
    )


STUDY = Study(
    name="strategies",
    question="What do fine-tuning strategies cost, and what do they score?",
    settings=StrategySettings,
    run=run_strategies,
    takes=("data", "test", "task", "models"),
    medium={"labels": 1000, "max_steps": 600, "test_size": 1000},
    large={"labels": 10_000, "max_steps": 2000, "test_size": 2000},
)
