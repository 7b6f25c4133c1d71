"""Figures of the study of scaling: losses with the fitted law, the frontier, the prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.metrics.bootstrap import Metric
from firth.study.engine.statistics import metric_texts
from firth.study.scaling_findings import ScalingPoint
from firth.study.scaling_law import LawFit
from firth.utils.figures import DataTable, Figure, LineChart, Point

CURVE = 12  # points of a fitted curve
LOSS = "validation loss (nats per predicted token)"


def scaling_figures(
    points: Sequence[ScalingPoint],
    fit: LawFit,
    predicted: Metric,
    largest: Sequence[ScalingPoint],
) -> list[Figure]:
    """Return the charts and tables of the study."""
    measured = [*points, *largest]
    figures: list[Figure] = [_by_tokens(measured, fit), _by_compute(measured, fit)]
    if largest:
        figures.append(_prediction(points, fit, predicted, largest[0]))
    return [*figures, _table(points, fit, predicted, largest), _frontier_table(measured, fit)]


def _by_tokens(points: Sequence[ScalingPoint], fit: LawFit) -> LineChart:
    lines: dict[str, tuple[Point, ...]] = {}
    for size in dict.fromkeys(point.parameters for point in points):
        own = [point for point in points if point.parameters == size]
        lines[f"{size:,} parameters"] = tuple(_point(point.tokens, point) for point in own)
    return LineChart(
        "Loss against tokens",
        "training tokens",
        LOSS,
        lines,
        log_x=True,
        caption="One line for each number of parameters, without embeddings. The 95 % intervals "
        "resample seeds and documents.",
    )


def _by_compute(points: Sequence[ScalingPoint], fit: LawFit) -> LineChart:
    name, unit = _unit(max(point.flops for point in points))
    lines: dict[str, tuple[Point, ...]] = {}
    for size in dict.fromkeys(point.parameters for point in points):
        own = [point for point in points if point.parameters == size]
        lines[f"{size:,} parameters"] = tuple(
            _point(_rounded(point.flops / unit), point) for point in own
        )
    if fit.law.has_optimum:
        lines["best of the law"] = tuple(
            Point(_rounded(flops / unit), float(fit.law.loss(*fit.law.optimal(flops))))
            for flops in _compute_range(points, CURVE)
        )
    return LineChart(
        "Loss against compute",
        f"training {name} (6 x parameters x tokens)",
        LOSS,
        lines,
        log_x=True,
        caption="The compute-optimal frontier is the loss of the law with the best number of "
        "parameters and tokens for each compute.",
    )


def _prediction(
    points: Sequence[ScalingPoint], fit: LawFit, predicted: Metric, largest: ScalingPoint
) -> LineChart:
    """Show the measured losses against those of the law."""
    losses = {float(fit.law.loss(point.parameters, point.tokens)): point for point in points}
    ordered = [_point(loss, losses[loss]) for loss in sorted(losses)]
    ends = (min(losses), max(losses), predicted.value)
    return LineChart(
        "Prediction and measurement",
        "loss of the law",
        "measured loss",
        {
            "measured, small runs": tuple(ordered),
            "measured = law": tuple(Point(end, end) for end in (min(ends), max(ends))),
            "predicted, largest run": (
                Point(predicted.value, predicted.value, predicted.low, predicted.high),
            ),
            "measured, largest run": (_point(predicted.value, largest),),
        },
        caption="The law was fitted without the largest run; the interval of its prediction is a "
        "95 % interval for the measured loss.",
    )


def _unit(flops: float) -> tuple[str, float]:
    """Return a unit for a compute of this size.

    >>> _unit(2e11)
    ('GFLOPs', 1000000000.0)
    """
    units = (("PFLOPs", 1e15), ("TFLOPs", 1e12), ("GFLOPs", 1e9), ("MFLOPs", 1e6))
    return next((unit for unit in units if flops >= 10 * unit[1]), units[-1])


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")  # short numbers at the axis


def _point(x: float, point: ScalingPoint) -> Point:
    found = point.scores.metric()
    return Point(x, found.value, found.low, found.high)


def _compute_range(points: Sequence[ScalingPoint], count: int) -> list[float]:
    flops = [point.flops for point in points]
    return [float(one) for one in np.geomspace(min(flops), max(flops), count)]


def _table(
    points: Sequence[ScalingPoint],
    fit: LawFit,
    predicted: Metric,
    largest: Sequence[ScalingPoint],
) -> DataTable:
    rows = [
        (
            f"{point.parameters:,}",
            f"{point.tokens:,}",
            *metric_texts(point.scores.metric()),
            f"{fit.law.loss(point.parameters, point.tokens):.3f}",
        )
        for point in [*points, *largest]
    ]
    if largest:
        rows[-1] = (*rows[-1][:-1], f"{predicted.value:.3f} (predicted)")
    columns = ("parameters without embeddings", "tokens", "loss", "95 % interval", "law")
    return DataTable("", columns, tuple(rows))


def _frontier_table(points: Sequence[ScalingPoint], fit: LawFit) -> DataTable:
    rows = []
    for flops in _compute_range(points, 4) if fit.law.has_optimum else []:
        size, tokens = fit.law.optimal(flops)
        loss = float(fit.law.loss(size, tokens))
        rows.append((f"{flops:.2g}", f"{size:,.0f}", f"{tokens:,.0f}", f"{loss:.3f}"))
    columns = ("FLOPs", "best parameters", "best tokens", "loss of the law")
    return DataTable("Compute-optimal frontier", columns, tuple(rows))
