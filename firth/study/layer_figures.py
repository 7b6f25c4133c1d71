"""Tables and figures of the study of layers: accuracy, selectivity and centre of gravity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from firth.metrics.bootstrap import Metric, to_json
from firth.study.engine.statistics import Scores, difference, mean_over_seeds, metric_texts
from firth.utils.figures import DataTable, Figure, Heatmap, LineChart, Point
from firth.utils.rng import Floats

CAPTION = (
    "Accuracy of linear probes on test examples; layer 0 is the embedding layer. The bars are 95 % "
    "intervals that resample seeds and examples."
)


class TaskLayers(NamedTuple):
    """The scores of one task in one model, by layer, and its centre of gravity, by seed."""

    task: Sequence[Scores]  # (L + 1)
    control: Sequence[Scores]  # (L + 1)
    weights: Floats  # (seeds, L + 1)
    centres: Floats  # (seeds,)


def layer_rows(model: str, task: str, one: TaskLayers | None, error: str) -> list[dict[str, Any]]:
    """Return one row for each layer as JSON values, or one with the error."""
    failed = {"error": error} if error else {}
    if one is None:
        return [{"model": model, "task": task, **failed}]
    centre = to_json(centre_metric(one))
    return [
        {
            "model": model,
            "task": task,
            "layer": layer,
            "accuracy": to_json(right.metric()),
            "control": to_json(control.metric()),
            "selectivity": to_json(difference(right, control).metric),
            "weight": to_json(_mean_within(one.weights[:, layer], 1.0)),
            "centre_of_gravity": centre,
            **failed,
        }
        for layer, (right, control) in enumerate(zip(one.task, one.control, strict=True))
    ]


def centre_metric(one: TaskLayers) -> Metric:
    """Return the mean centre of gravity; its interval ends at the last layer."""
    return _mean_within(one.centres, len(one.task) - 1.0)


def _mean_within(values: Floats, high: float) -> Metric:
    """Return the mean over seeds of values between 0 and `high`, and its interval within these."""
    found = mean_over_seeds(values).metric
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(0.0, found.low), high=min(high, found.high))


def layer_figures(model: str, own: Mapping[str, TaskLayers]) -> list[Figure]:
    """Draw the tasks of one model."""
    return [_chart(model, own), _selectivity(model, own), _weights(model, own), _table(model, own)]


def _chart(model: str, own: Mapping[str, TaskLayers]) -> LineChart:
    lines = {
        task: tuple(
            Point(layer, metric.value, metric.low, metric.high)
            for layer, metric in enumerate(scores.metric() for scores in one.task)
        )
        for task, one in own.items()
    }
    return LineChart(f"Probes of {model}", "layer", "accuracy", lines, caption=CAPTION)


def _selectivity(model: str, own: Mapping[str, TaskLayers]) -> Heatmap:
    values = {
        task: [difference(*pair).metric.value for pair in zip(one.task, one.control, strict=True)]
        for task, one in own.items()
    }
    caption = (
        "Accuracy on the task minus that on a control task: random labels of words, which a probe "
        "can only memorize, or of texts."
    )
    return _heatmap(f"Selectivity in {model}", values, caption, low=-1.0)


def _weights(model: str, own: Mapping[str, TaskLayers]) -> Heatmap:
    values = {task: one.weights.mean(0).tolist() for task, one in own.items()}
    caption = "How much of each layer a probe of all layers reads; rows sum to 1."
    return _heatmap(f"Layer weights in {model}", values, caption)


def _heatmap(
    title: str, values: Mapping[str, Sequence[float]], caption: str, low: float = 0.0
) -> Heatmap:
    rows = tuple(map(tuple, values.values()))
    return Heatmap(
        title,
        tuple(values),
        tuple(map(str, range(len(rows[0])))),
        rows,
        tuple(tuple(f"{value:.2f}" for value in row) for row in rows),
        low=low,
        column_title="layer",
        caption=caption,
    )


def _table(model: str, own: Mapping[str, TaskLayers]) -> DataTable:
    rows = []
    for task, one in own.items():
        best = int(np.argmax([scores.value for scores in one.task]))
        centre = metric_texts(centre_metric(one), digits=2)
        accuracy = metric_texts(one.task[best].metric())
        selectivity = metric_texts(difference(one.task[best], one.control[best]).metric)
        rows.append((task, *centre, str(best), *accuracy, *selectivity))
    interval = "95 % interval"
    columns = ("task", "centre of gravity", interval, "best layer", "accuracy", interval)
    return DataTable(f"Tasks in {model}", (*columns, "selectivity", interval), tuple(rows))
