"""A study as data, what it gets when it runs, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.metrics.bootstrap import Metric
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.study.engine.grid import CellProgress, OnResult, Results, run_cells
from firth.study.engine.statistics import Difference
from firth.utils.errors import UsageError
from firth.utils.figures import Figure


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One sentence with its number and interval; `holds` is None if the data cannot decide."""

    name: str  # by which the table of claims names it
    text: str
    holds: bool | None
    value: float | None = None
    low: float | None = None  # without high: a lower bound
    high: float | None = None
    unit: str = ""  # of value, low and high
    beyond: float | None = None  # without value: it is above this, where the data ends
    smallest: float | None = None  # a lower value, low or high only means that it is below this

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "name": self.name,
            "text": self.text,
            "holds": self.holds,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unit": self.unit,
            "beyond": self.beyond,
            "smallest": self.smallest,
        }


def decided(
    name: str,
    claim: str,
    found: Difference,
    *,
    unit: str = "points",
    scale: float = 100.0,
    digits: int = 1,
) -> Finding:
    """Make a finding of a difference that is positive if the claim holds.

    >>> found = Difference(Metric(value=0.1, low=0.05, high=0.15), p=0.01)
    >>> decided("help", "pre-training helps", found).text
    'Pre-training helps: by 10.0 points (95 % interval 5.0 to 15.0).'
    >>> decided("harm", "pre-training harms", found.opposite).text
    'The runs contradict that pre-training harms: by 10.0 points the other way (95 % interval 5.0 \
to 15.0).'
    """
    metric, sign = found.metric, -1 if found.holds is False else 1
    plus = "+" if found.holds is None else ""
    ends = [end for end in (metric.low, metric.high) if end is not None][::sign]
    shown = [f"{sign * scale * end:{plus}.{digits}f}" for end in (metric.value, *ends)]
    interval = f" (95 % interval {shown[1]} to {shown[2]})" if len(shown) == 3 else ""
    size = f"{shown[0]} {unit}"
    if found.holds:
        text = f"{claim[0].upper()}{claim[1:]}: by {size}{interval}."
    elif found.holds is False:
        text = f"The runs contradict that {claim}: by {size} the other way{interval}."
    else:
        excludes_zero = len(ends) == 2 and ends[0] * ends[1] > 0
        why = f"; p = {found.p:.2g} after correction for several comparisons" * excludes_zero
        text = f"The runs cannot decide whether {claim}: {size} in its favour{interval}{why}."
    return Finding(
        name=name,
        text=text,
        holds=found.holds,
        value=scale * metric.value,
        low=None if metric.low is None else scale * metric.low,
        high=None if metric.high is None else scale * metric.high,
        unit=unit,
    )


def with_interval(metric: Metric, *, unit: str = "", scale: float = 1.0, digits: int = 1) -> str:
    """Format a difference with its unit and interval."""
    unit = f" {unit}" if unit else ""
    size = f"{scale * metric.value:+.{digits}f}{unit}"
    if metric.low is None or metric.high is None:
        return f"{size} (interval {metric.interval})"
    low, high = (f"{scale * end:+.{digits}f}" for end in (metric.low, metric.high))
    return f"{size} (95 % interval {low} to {high})"


def points(metric: Metric) -> dict[str, Any]:
    """Return the fields of a finding whose value is a difference of scores in points.

    >>> points(Metric(value=0.5, low=0.25, high=0.75))
    {'value': 50.0, 'low': 25.0, 'high': 75.0, 'unit': 'points'}
    """
    ends = {name: getattr(metric, name) for name in ("value", "low", "high")}
    scaled = {name: None if end is None else 100 * end for name, end in ends.items()}
    return {**scaled, "unit": "points"}


@dataclass(frozen=True, kw_only=True)
class StudyAnalysis:
    """What a study found; the first finding is the verdict."""

    rows: Sequence[Mapping[str, Any]]  # JSON values; a metric as {"value", "low", "high"}
    findings: Sequence[Finding]
    figures: Sequence[Figure]  # the first chart is also written as PNG
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """The data and models that a user gave; None: the stories and an embedded model."""

    data: Path | None = None
    test: Path | None = None
    task: str | None = None
    text: Path | None = None
    models: tuple[str, ...] = ()
    columns: Mapping[str, str] | None = None

    def given(self) -> list[str]:
        """Return the names of what was given."""
        names = ("data", "test", "task", "text", "models", "columns")
        return [name for name in names if getattr(self, name)]


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """What the function of a study gets: inputs, settings and seeds; `run` runs its cells."""

    inputs: StudyInputs
    settings: Any  # of the study's settings class
    out: Path
    budget: str
    seeds: tuple[int, ...]
    cache: CellCache
    workers: int
    on_result: OnResult
    notes: list[str] = field(default_factory=list)
    cells: dict[Cell, Any] = field(default_factory=dict)  # all results so far

    def run(self, cells: Iterable[Cell]) -> Results:
        """Run the cells of a grid, or read those that have finished."""
        return run_cells(cells, self.cache, workers=self.workers, on_result=self.add)

    def require(self, *cells: Cell) -> list[Mapping[str, Any]]:
        """Run cells without which the study cannot go on: an error of one is raised."""
        found = []
        for done, cell in enumerate(cells, 1):
            result = self.cache.run(cell)
            self.add(CellProgress(cell, result, done, len(cells)))
            found.append(result.values)
        return found

    def add(self, progress: CellProgress) -> None:
        """Note a cell that has finished."""
        self.cells[progress.cell] = progress.result
        self.on_result(progress)

    def with_seeds(
        self, function: Callable[..., Mapping[str, Any]], name: str, **settings: Any
    ) -> list[Cell]:
        """Make one cell for each seed."""
        return [
            Cell(function, settings, seed=seed, name=f"{name}, seed {seed}") for seed in self.seeds
        ]

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: its question, its settings for each budget, and the function that runs it."""

    name: str
    question: str
    settings: type  # a frozen dataclass; its defaults are those of the small budget
    run: Callable[[StudyRun], StudyAnalysis]
    takes: tuple[str, ...] = ()  # the inputs that may be given: data, test, task, text, models
    several_models: bool = False  # whether models are compared
    medium: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from the small
    large: Mapping[str, Any] = field(default_factory=dict)

    def check_inputs(self, inputs: StudyInputs) -> None:
        """Raise UsageError for an input that the study does not use."""
        if len(inputs.models) > 1 and "models" in self.takes and not self.several_models:
            raise UsageError(f"The study {self.name} uses one model; give --model once.")
        for name in inputs.given():
            if name not in self.takes and not (name == "columns" and "data" in self.takes):
                option = "--model" if name == "models" else f"--{name}"
                raise UsageError(f"The study {self.name} does not use {option}; omit it.")
