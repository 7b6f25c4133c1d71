"""What the study `t5-table` finds: the table with intervals, and comparisons of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from firth.metrics.bootstrap import Metric, to_json
from firth.study.cells.finetuning_cells import EXACT_MATCH
from firth.study.cells.text_to_text_cells import DENOISING, LANGUAGE_MODELLING
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.statistics import (
    Difference,
    Scores,
    holm,
    interval,
    metric_texts,
    of_resamples,
)
from firth.study.engine.study import Finding, decided
from firth.study.t5_models import (
    ARCHITECTURES,
    BEST,
    ENCODER_DECODER,
    HALF,
    LECTURE_COLUMNS,
    LECTURE_SCORES,
    LM,
    OBJECTIVES,
    PREFIX_LM,
    SHARED,
    SOURCE,
    Model,
)
from firth.utils.figures import Bar, BarChart, DataTable
from firth.utils.rng import Floats


class Score(NamedTuple):
    """The mean over tasks of a model's scores: its value and its resamples."""

    value: float
    samples: Floats  # (R,)

    @property
    def metric(self) -> Metric:
        """The value with its interval."""
        return interval(self.value, self.samples)


class Found(NamedTuple):
    """What was measured of one model."""

    parameters: int
    parameters_without_embeddings: int
    flops: float  # per sequence
    loss: Scores
    by_task: dict[str, Scores]
    score: Score


def collect(
    results: Results,
    model: Model,
    measured: Sequence[Cell],
    tuned: Mapping[tuple[Model, str], Sequence[Cell]],
    tasks: Sequence[str],
) -> Found | None:
    """Collect the results of a model; None if all its runs failed."""
    loss = results.scores(measured, "loss")
    scores = {task: results.scores(tuned[model, task], EXACT_MATCH) for task in tasks}
    known = {task: score for task, score in scores.items() if score is not None}
    if loss is None or len(known) < len(tasks):
        return None
    values = results.values_of(measured)[0]
    mean = Score(
        float(np.mean([score.value for score in known.values()])),
        np.mean([score.resampled for score in known.values()], axis=0),
    )
    return Found(
        parameters=values["parameters"],
        parameters_without_embeddings=values["parameters_without_embeddings"],
        flops=values["flops"],
        loss=loss,
        by_task=known,
        score=mean,
    )


def result_row(model: Model, found: Found | None, error: str) -> dict[str, Any]:
    architecture = ARCHITECTURES[model[0]]
    row = {"architecture": model[0], "objective": model[1], **({"error": error} if error else {})}
    if found is None:
        return row
    return {
        **row,
        "parameters": found.parameters,
        "parameters_without_embeddings": found.parameters_without_embeddings,
        "flops_per_sequence": found.flops,
        "loss": to_json(found.loss.metric()),
        EXACT_MATCH: to_json(found.score.metric),
        "tasks": {task: to_json(scores.metric()) for task, scores in found.by_task.items()},
        "lecture": {
            "parameters": architecture.parameters,
            "cost": architecture.cost,
            **LECTURE_SCORES[model],
            "source": SOURCE,
        },
    }


# ---- findings -----------------------------------------------------------------------------------


def _difference(first: Score, second: Score) -> Difference:
    return of_resamples(first.value - second.value, first.samples - second.samples)


def compare_models(scores: Mapping[Model, Score]) -> list[Finding]:
    """Compare the models as the lecture's table does; p-values are corrected (Holm)."""
    pairs = {
        "denoising": (
            BEST,
            (ENCODER_DECODER, LANGUAGE_MODELLING),
            "denoising is better than language modelling in the encoder-decoder",
        ),
        "sharing": (BEST, (SHARED, DENOISING), "separate weights are better than shared ones"),
        "depth": ((SHARED, DENOISING), (HALF, DENOISING), "sharing is better than half the layers"),
        "prefix": (
            (PREFIX_LM, DENOISING),
            (LM, DENOISING),
            "a bidirectional prefix is better than causal attention",
        ),
    }
    found = {
        name: _difference(scores[first], scores[second])
        for name, (first, second, _) in pairs.items()
        if first in scores and second in scores
    }
    claims = {name: claim for name, (_, _, claim) in pairs.items()}
    if (denoising := _denoising(scores)) is not None:
        found["objective"] = denoising
        claims["objective"] = "denoising is better than language modelling, the mean over models"
    others = [decided(f"t5-{name}", claims[name], one) for name, one in holm(found).items()]
    return [_best(scores), *others]


def _best(scores: Mapping[Model, Score]) -> Finding:
    """Compare the encoder-decoder with denoising with each of the others."""
    claim = f"the encoder-decoder with denoising is the best of the {len(scores)} models"
    others = {model: score for model, score in scores.items() if model != BEST}
    if BEST not in scores or not others:
        return Finding(name="t5-best", text="There is nothing to compare.", holds=None)
    compared = holm({model: _difference(scores[BEST], one) for model, one in others.items()})
    rival = min(compared, key=lambda model: compared[model].metric.value)
    holds = {one.holds for one in compared.values()}
    p = 0.0 if holds == {True} or False in holds else 1.0  # better than all, or worse than one
    one = decided("t5-best", claim, Difference(compared[rival].metric, p))
    text = f"{one.text[:-1]} to the best other, {', '.join(rival)}."
    return Finding(**{**vars(one), "text": text})


def _denoising(scores: Mapping[Model, Score]) -> Difference | None:
    """Return how much better denoising is than language modelling, the mean of architectures."""
    both = [[(name, kind) for kind in OBJECTIVES] for name in ARCHITECTURES]
    pairs = [pair for pair in both if all(model in scores for model in pair)]
    if not pairs:
        return None
    values = [scores[first].value - scores[second].value for first, second in pairs]
    samples = [scores[first].samples - scores[second].samples for first, second in pairs]
    return of_resamples(float(np.mean(values)), np.mean(samples, axis=0))


# ---- figures ------------------------------------------------------------------------------------


def score_bars(found: Mapping[Model, Found]) -> BarChart:
    bars = tuple(
        Bar(", ".join(model), one.score.value, one.score.metric.low, one.score.metric.high)
        for model, one in found.items()
    )
    return BarChart(
        "Fine-tuned score",
        bars,
        caption="Exact match, the mean over tasks; 95 % intervals resample seeds and examples.",
    )


def result_table(found: Mapping[Model, Found]) -> DataTable:
    tasks = list(next(iter(found.values())).by_task) if found else []
    cost = found[BEST].flops if BEST in found else 1.0
    columns = ("architecture", "objective", "parameters", "without embeddings", "FLOPs", "loss")
    rows = tuple(
        (
            *model,
            f"{one.parameters:,}",
            f"{one.parameters_without_embeddings:,}",
            f"{one.flops / cost:.2f} M",
            " ".join(_parenthesized(one.loss.metric())),
            *(" ".join(_parenthesized(one.by_task[task].metric(), 100, 1)) for task in tasks),
        )
        for model, one in found.items()
    )
    return DataTable("Measured here", (*columns, *tasks), rows)


def _parenthesized(metric: Metric, scale: float = 1.0, digits: int = 3) -> tuple[str, str]:
    value, ends = metric_texts(metric, scale, digits)
    return value, f"({ends})"


def lecture_table() -> DataTable:
    rows = tuple(
        (
            *model,
            ARCHITECTURES[model[0]].parameters,
            ARCHITECTURES[model[0]].cost,
            *(f"{score:.2f}" for score in scores.values()),
        )
        for model, scores in LECTURE_SCORES.items()
    )
    columns = ("architecture", "objective", "parameters", "cost", *LECTURE_COLUMNS)
    return DataTable(f"The lecture's table: {SOURCE}", columns, rows)
