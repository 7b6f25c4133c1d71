"""The results of the study `timeline` as rows, a picture by year, curves and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.metrics.bootstrap import to_json
from firth.study.claim_table import claims_about
from firth.study.engine.statistics import Scores, metric_texts
from firth.study.engine.study import Finding
from firth.study.label_curves import Curves, NeededLabels, finite, labels_to_reach
from firth.study.timeline_models import Method
from firth.utils.figures import Bar, BarChart, DataTable, Figure, LineChart, Point

NAME = "timeline"  # of the study in the table of claims


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The scores and costs of all methods."""

    task: str
    metric: str
    reference: int  # number of labels of the table; 0: a language model has none
    methods: tuple[Method, ...]  # with a score, by year
    curves: Curves
    other_domain: Mapping[str, Scores]  # scores on another domain, by method
    cost: Mapping[str, Mapping[str, float]]  # parameters, seconds, pretraining_seconds
    errors: Mapping[str, str]

    def scores(self, method: str) -> Scores | None:
        """Return the scores of a method with the reference labels."""
        return self.curves.get((method, self.reference))

    def to_next(self, place: int) -> NeededLabels | None:
        """Return how many labels a method needs to reach the next one of the table."""
        if not self.reference or place + 1 >= len(self.methods):
            return None
        target = (self.methods[place + 1].name, self.reference)
        return labels_to_reach(self.curves, target, self.methods[place].name)


def timeline_rows(found: Timeline) -> list[dict[str, Any]]:
    """Return a row of JSON values for each method."""
    rows = [_row(found, place, method) for place, method in enumerate(found.methods)]
    scored = {method.name for method in found.methods}
    return rows + [
        {"method": name, "error": error}
        for name, error in found.errors.items()
        if name not in scored
    ]


def _row(found: Timeline, place: int, method: Method) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method.name, "year": method.year, "paper": method.paper}
    scores = found.scores(method.name)
    assert scores is not None
    row |= {found.metric: to_json(scores.metric()), "by_seed": scores.by_seed.tolist()}
    if found.reference:
        row |= {"labels": found.reference, "by_labels": _by_labels(found, method.name)}
    if (other := found.other_domain.get(method.name)) is not None:
        row[f"{found.metric} on another domain"] = to_json(other.metric())
    if (needed := found.to_next(place)) is not None:
        ends = {name: finite(getattr(needed, name)) for name in ("value", "low", "high")}
        row["labels_to_reach_next"] = {"next": found.methods[place + 1].name, **ends}
    error = {"error": found.errors[method.name]} if method.name in found.errors else {}
    return {**row, **found.cost[method.name], **error}


def _by_labels(found: Timeline, name: str) -> dict[str, float]:
    own = {count: scores for (method, count), scores in found.curves.items() if method == name}
    return {str(count): scores.value for count, scores in own.items()}


def timeline_figures(found: Timeline, findings: Sequence[Finding]) -> list[Figure]:
    """Return the picture by year, the curves, and the tables."""
    figures: list[Figure] = [_by_year(found), _table(found)]
    if found.reference:
        figures.append(_label_curves(found))
    tables = [_next_rows(found), _lectures(findings), _papers(found)]
    return [*figures, *(table for table in tables if table.rows)]


CAPTION = "Means over seeds, with 95 % intervals that resample seeds and examples."


def _by_year(found: Timeline) -> BarChart:
    bars = []
    for method in found.methods:
        scores = found.scores(method.name)
        assert scores is not None
        metric = scores.metric()
        bars.append(Bar(f"{method.year} {method.name}", metric.value, metric.low, metric.high))
    title = f"{found.metric.capitalize()}, by year"
    if found.reference:  # a fraction
        title = f"{found.metric.capitalize()} with {found.reference:,} labels, by year"
        return BarChart(title, tuple(bars), caption=CAPTION)
    largest = max(bar.value if bar.high is None else bar.high for bar in bars)
    return BarChart(title, tuple(bars), scale=largest, caption=CAPTION, percent=False)


def _label_curves(found: Timeline) -> LineChart:
    """Show the scores over numbers of labels, without intervals, which would hide each other."""
    lines: dict[str, list[Point]] = {}
    for (method, count), scores in found.curves.items():
        lines.setdefault(method, []).append(Point(count, scores.value))
    points = {method: tuple(some) for method, some in lines.items()}
    return LineChart("Label efficiency", "labelled examples", found.metric, points, log_x=True)


def _table(found: Timeline) -> DataTable:
    columns = ["method", "year", found.metric, "95 % interval"]
    columns += ["other domain"] * bool(found.other_domain)
    columns += ["parameters", "pre-training, s"]
    columns += ["training, s"] * bool(found.reference)
    rows = [_table_row(found, method) for method in found.methods]
    return DataTable("All methods", tuple(columns), tuple(rows))


def _table_row(found: Timeline, method: Method) -> tuple[str, ...]:
    scores, cost = found.scores(method.name), found.cost[method.name]
    assert scores is not None
    row = [method.name, str(method.year), *metric_texts(scores.metric())]
    if found.other_domain:
        row.append(metric_texts(found.other_domain[method.name].metric())[0])
    row.append(f"{int(cost['parameters']):,}" if "parameters" in cost else "")
    row.append(f"{cost['pretraining_seconds']:.0f}" if "pretraining_seconds" in cost else "")
    if found.reference:
        row.append(f"{cost['seconds']:.1f}")
    return tuple(row)


def _next_rows(found: Timeline) -> DataTable:
    """Show how many labels each method needs for the score of the next one."""
    needed = [found.to_next(place) for place in range(len(found.methods))]
    rows = tuple(
        (method.name, found.methods[place + 1].name, labels.text)
        for place, (method, labels) in enumerate(zip(found.methods, needed, strict=True))
        if labels is not None
    )
    title = f"Labels needed to reach the score that the next row has with {found.reference:,}"
    return DataTable(title, ("method", "next", "labels (95 % interval)"), rows, texts=True)


def _papers(found: Timeline) -> DataTable:
    rows = tuple((method.name, method.paper) for method in found.methods)
    return DataTable("Papers", ("method", "paper"), rows, texts=True, folded=True)


def _lectures(findings: Sequence[Finding]) -> DataTable:
    """Show what the lectures say beside what was measured here."""
    rows = tuple(
        (claim.claimed, claim.claim, claim.source, finding.text)
        for finding in findings
        for claim in claims_about(NAME, finding.name)
    )
    columns = ("claimed", "claim", "lecture", "measured here")
    return DataTable("What the lectures say", columns, rows, texts=True)
