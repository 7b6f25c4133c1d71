"""Rows, bars and a table of the study of domain shift: each method on both domains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.metrics.bootstrap import to_json
from firth.study.domain_findings import DomainScores
from firth.study.engine.statistics import metric_texts
from firth.utils.figures import Bar, BarChart, DataTable


def domain_row(name: str, one: DomainScores | None, error: str, metric: str) -> dict[str, Any]:
    """Return the scores of a method on both domains as JSON values, or its error."""
    if one is None:
        return {"method": name, "error": error}
    domains = {"source": one.source, "target": one.target}
    scores = {f"{metric} on {domain}": to_json(each.metric()) for domain, each in domains.items()}
    return {"method": name, **scores, **({"error": error} if error else {})}


def domain_bars(found: Mapping[str, DomainScores], names: tuple[str, str], metric: str) -> BarChart:
    """Draw the scores of each method on source and target."""
    bars = []
    for name, one in found.items():
        for domain, scores in (("source", one.source), ("target", one.target)):
            value = scores.metric()
            bars.append(Bar(f"{name}: {domain}", value.value, value.low, value.high))
    return BarChart(
        f"{metric.capitalize()} on both domains",
        tuple(bars),
        caption=f"Source: {names[0]}; target: {names[1]}. Means over seeds; the bars are 95 % "
        "intervals that resample seeds and examples.",
    )


def domain_table(found: Mapping[str, DomainScores], metric: str) -> DataTable:
    """Tabulate the scores with their intervals."""
    columns = ("method", f"{metric}, source", "95 % interval", f"{metric}, target", "95 % interval")
    rows = tuple(
        (name, *metric_texts(one.source.metric()), *metric_texts(one.target.metric()))
        for name, one in found.items()
    )
    return DataTable("", columns, rows)
