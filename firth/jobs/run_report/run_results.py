"""Metrics of runs with their intervals, and what the runs cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from firth.jobs.run_report.run_record import KINDS, RunRecord
from firth.training.log import ACCURACY
from firth.training.run_directory import saved_bytes
from firth.utils.figures import Bar, BarChart, DataTable, Figure, Paragraph

ABSENT = "–"
VALIDATION = "validation text"
LAST_VALIDATION = "last validation"  # of an unfinished run
NO_INTERVAL = "only finished fine-tuning runs store one"
COSTS = {  # column: name of the number, its unit
    "steps": ("steps", ""),
    "tokens": ("tokens", ""),
    "seconds": ("seconds", ""),
    "tokens/s (median)": ("tokens_per_second", ""),
    "peak memory": ("memory", "MiB"),
    "parameters": ("parameters", ""),
    "trainable": ("trainable_parameters", ""),
    "saved weights": ("saved_bytes", "MiB"),
}


@dataclass(frozen=True)
class RunResults:
    """What a run reached, and what it cost; None: not known."""

    metrics: Mapping[str, Mapping[str, Any]]  # value, low, high, reason
    evaluated_on: str
    examples: int | None
    selected_on: tuple[str, ...]  # what was chosen by these metrics
    cost: Mapping[str, float | None]

    def values(self) -> dict[str, Any]:
        """Return JSON values; a metric that is not finite is None."""
        return {
            "metrics": {
                name: {
                    **metric,
                    "value": metric["value"] if math.isfinite(metric["value"]) else None,
                }
                for name, metric in self.metrics.items()
            },
            "evaluated_on": self.evaluated_on,
            "n": self.examples,
            "selected_on": list(self.selected_on),
            **self.cost,
        }


def run_results(record: RunRecord) -> RunResults:
    """Collect the results of a run; those of an unfinished one are in its log."""
    results = record.part("results")
    found = record.part("results", "metrics")
    metrics = {name: metric for name, metric in found.items() if _is_metric(metric)}
    evaluated_on = str(results.get("evaluated_on") or "")
    if not metrics:
        metrics = _validation_metrics(record)
        evaluated_on = (VALIDATION if results else LAST_VALIDATION) if metrics else ""
    count = _number(results, "n")
    return RunResults(
        metrics=metrics,
        evaluated_on=evaluated_on,
        examples=None if count is None else int(count),
        selected_on=tuple(map(str, results.get("selected_on") or ())),
        cost=_cost(record),
    )


def _is_metric(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("value"), int | float)


def _validation_metrics(record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the metrics of the last validation, which have no intervals."""
    lines = record.lines("validation")
    last = record.part("results", "validation") or (lines[-1] if lines else {})
    terms = [name for name in last if f"{name}{ACCURACY}" in last]  # an only term is the loss
    return {
        name: {"value": value, "low": None, "high": None, "reason": NO_INTERVAL}
        for name, value in last.items()
        if isinstance(value, float) and terms != [name]
    }


def _cost(record: RunRecord) -> dict[str, float | None]:
    results, last = record.part("results"), _newest(record)
    speeds = [line["tokens_per_second"] for line in record.lines("step", "tokens_per_second")]
    memory = [line["memory"] for line in record.lines("step", "memory")]
    parameters, trainable = (
        _number(results, name) for name in ("parameters", "trainable_parameters")
    )
    is_pretraining = record.kind == KINDS["pretraining"]
    return {
        "steps": _number(results, "steps") or _number(last, "step"),
        "tokens": _number(results, "tokens") or _number(last, "tokens"),
        "seconds": _number(results, "seconds") or _number(last, "seconds"),
        "tokens_per_second": median(speeds) if speeds else None,
        "memory": _number(results, "memory") or max(memory, default=None),
        "parameters": parameters,
        "trainable_parameters": parameters if is_pretraining else trainable,
        "saved_bytes": _number(results, "saved_bytes") or (saved_bytes(record.path) or None),
    }


def _newest(record: RunRecord) -> dict[str, float]:
    """Return the newest step, tokens and seconds of the log; not every step is logged."""
    names = ("step", "tokens", "seconds")
    return {name: line[name] for line in record.log for name in names if _number(line, name)}


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return value if isinstance(value, int | float) else None


# ---- figures ----------------------------------------------------------------------------------


def metric_figures(records: Sequence[RunRecord], results: Sequence[RunResults]) -> list[Figure]:
    """Show the metrics of runs of one group, and the first one as bars."""
    names = list(dict.fromkeys(name for one in results for name in one.metrics))
    rows = tuple(
        (
            record.name,
            *(metric_text(one.metrics.get(name)) for name in names),
            ABSENT if one.examples is None else f"{one.examples:,}",
            one.evaluated_on or ABSENT,
        )
        for record, one in zip(records, results, strict=True)
    )
    some = any(metric.get("low") is not None for one in results for metric in one.metrics.values())
    title = f"{records[0].group.capitalize()}: metrics"
    title += " with 95 % confidence intervals" if some else ""
    table = DataTable(title, ("run", *names, "examples", "evaluated on"), rows)
    chosen: dict[str, list[str]] = {}
    for record, one in zip(records, results, strict=True):
        if one.selected_on:
            chosen.setdefault(" and ".join(one.selected_on), []).append(record.name)
    notes = [f"Without an interval: {reason}." for reason in _reasons(results)]
    if chosen:
        texts = (f"{what} ({', '.join(names)})" for what, names in chosen.items())
        notes.append(f"Selected on these examples, so metrics are optimistic: {'; '.join(texts)}.")
    return [table, *_bars(records, results), *map(Paragraph, notes)]


def metric_text(metric: Mapping[str, Any] | None) -> str:
    """Format a metric with its interval.

    >>> metric_text({"value": 0.5, "low": 0.25, "high": 0.75})
    '0.500 (0.250 to 0.750)'
    """
    if metric is None:
        return ABSENT
    text = f"{metric['value']:.3f}"
    low, high = _number(metric, "low"), _number(metric, "high")
    return text if low is None or high is None else f"{text} ({low:.3f} to {high:.3f})"


def _reasons(results: Sequence[RunResults]) -> list[str]:
    """Return why metrics have no interval, with the names of the metrics."""
    found: dict[str, dict[str, None]] = {}
    for one in results:
        for name, metric in one.metrics.items():
            if metric.get("low") is None:
                found.setdefault(str(metric.get("reason") or "unknown"), {})[name] = None
    return [f"{', '.join(names)} ({reason})" for reason, names in found.items()]


def _bars(records: Sequence[RunRecord], results: Sequence[RunResults]) -> list[BarChart]:
    """Draw the first metric for each kind of examples, if it is a proportion."""
    charts: dict[str, list[Bar]] = {}
    for record, one in zip(records, results, strict=True):
        name, metric = next(iter(one.metrics.items()), ("", {}))
        low, high = _number(metric, "low"), _number(metric, "high")
        if low is not None and high is not None and 0 <= low <= high <= 1:
            bar = Bar(record.name, metric["value"], low, high)
            charts.setdefault(f"{name} ({one.evaluated_on})", []).append(bar)
    return [BarChart(title, tuple(bars)) for title, bars in charts.items() if len(bars) > 1]


def cost_table(records: Sequence[RunRecord], results: Sequence[RunResults]) -> DataTable:
    """Show steps, time, speed, memory and sizes of all runs."""
    rows = tuple(
        (record.name, *(_cost_text(one.cost.get(name), unit) for name, unit in COSTS.values()))
        for record, one in zip(records, results, strict=True)
    )
    return DataTable("Cost", ("run", *COSTS), rows)


def _cost_text(value: float | None, unit: str) -> str:
    """Format a number with its unit.

    >>> _cost_text(3 * 2**20, "MiB"), _cost_text(1234.5, ""), _cost_text(None, "")
    ('3.0 MiB', '1,234', '–')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if unit:
        return f"{value / 2**20:,.1f} {unit}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
