"""Training and validation losses of runs, over steps, tokens and seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from firth.jobs.run_report.run_record import RunRecord
from firth.utils.figures import Figure, LineChart, Paragraph, Point, Tabs

AXES = ("steps", "tokens", "seconds")
UNITS = {  # the largest unit of which the axis has two is shown
    "steps": ((1.0, "steps"),),
    "tokens": ((1e9, "billion tokens"), (1e6, "million tokens"), (1e3, "thousand tokens")),
    "seconds": ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")),
}
MOST_POINTS = 300  # of a line; neighbouring points of longer ones are averaged


class LossPoint(NamedTuple):
    """A loss with its place on each axis."""

    steps: int
    tokens: int
    seconds: float
    loss: float


def losses(record: RunRecord, kind: str) -> list[LossPoint]:
    """Return the finite losses of a run: those of `step` lines, or of `validation` lines.

    Validation lines have no time: they get that of the last step before.
    """
    points, seconds = [], 0.0
    for line in record.log:
        if isinstance(line.get("seconds"), int | float):
            seconds = float(line["seconds"])
        values = [line.get(name) for name in ("step", "tokens", "loss")]
        if line.get("kind") == kind and all(isinstance(value, int | float) for value in values):
            step, tokens, loss = (float(value) for value in values if value is not None)
            if math.isfinite(loss):
                points.append(LossPoint(int(step), int(tokens), seconds, loss))
    return points


def curve_values(record: RunRecord) -> dict[str, Any]:
    """Return the loss curves of a run as JSON values."""
    names = {"training": "step", "validation": "validation"}
    return {
        name: [point._asdict() for point in losses(record, kind)] for name, kind in names.items()
    }


def loss_figures(records: Sequence[RunRecord]) -> list[Figure]:
    """Overlay the losses of runs of one group; their axis is chosen by tabs."""
    training = {record.name: losses(record, "step") for record in records}
    validation = {record.name: losses(record, "validation") for record in records}
    # A run has the same colour in both charts: runs without a validation come last.
    names = sorted(training, key=lambda name: not validation[name])
    charts = {"training loss": training, "validation loss": validation}
    silent = [name for name in names if not training[name] and not validation[name]]
    figures: list[Figure] = [
        Tabs(
            records[0].group.capitalize(),
            AXES,
            tuple(
                tuple(
                    _chart(title, {name: points[name] for name in names if points[name]}, axis)
                    for title, points in charts.items()
                    if any(points.values())
                )
                for axis in AXES
            ),
        )
    ] * (len(silent) < len(names))
    if silent:
        figures.append(Paragraph(f"No loss was logged: {', '.join(silent)}."))
    return figures + [Paragraph(text) for text in _not_comparable(records)]


def _chart(title: str, points: dict[str, list[LossPoint]], axis: str) -> LineChart:
    place: Callable[[LossPoint], float] = lambda point: getattr(point, axis)  # noqa: E731
    furthest = max(place(point) for line in points.values() for point in line)
    units = UNITS[axis]
    size, label = next((unit for unit in units if furthest >= 2 * unit[0]), (1.0, axis))
    lines = {
        name: tuple(_averaged([(place(point) / size, point.loss) for point in line]))
        for name, line in points.items()
    }
    return LineChart(title.capitalize(), label, "loss", lines)


def _averaged(points: Sequence[tuple[float, float]]) -> list[Point]:
    """Average neighbouring points so that at most MOST_POINTS are left."""
    size = -(-len(points) // MOST_POINTS)
    groups = (points[i : i + size] for i in range(0, len(points), size))
    return [Point(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def _not_comparable(records: Sequence[RunRecord]) -> list[str]:
    """Warn if the losses are those of several objectives."""
    names = dict.fromkeys(str(record.part("job").get("objective")) for record in records)
    text = f"Losses of different objectives cannot be compared: {', '.join(names)}."
    return [text] if len(names) > 1 else []
