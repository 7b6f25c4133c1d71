"""Chapter: fine-tuning with few labels, against the same network without pre-training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.demo.workspace import Findings, Workspace
from firth.jobs.finetuning import FinetuneResult
from firth.jobs.prediction import predict
from firth.metrics.bootstrap import Metric, means, to_json
from firth.utils.figures import DataTable, Figure, LineChart, MarkedText, Paragraph, Piece, Point
from firth.utils.rng import Floats

PRETRAINED, SCRATCH = "pre-trained", "from scratch"
# None of these occurs in the stories.
OPINIONS = (
    "What a delightful visit, I enjoyed every minute of it.",
    "The soup was cold and the bread was burnt.",
    "It was not boring at all.",
)


@dataclass(frozen=True)
class LabelResult:
    """The accuracy of one model with a number of labels, and which test texts it got right."""

    model: str
    labels: int
    accuracy: Metric
    correct: Floats  # (n,) 0 or 1


@dataclass(frozen=True)
class Comparison:
    """How much better pre-training is than training from scratch with a number of labels."""

    labels: int
    difference: Metric  # of accuracies, on the same test texts

    @property
    def holds(self) -> bool | None:
        """Whether the lesson holds; None if the interval contains 0."""
        low, high = self.difference.low or 0.0, self.difference.high or 0.0
        return True if low > 0 else False if high < 0 else None

    @property
    def verdict(self) -> str:
        """Say what the difference and its interval mean.

        >>> metric = Metric(value=-0.04, low=-0.08, high=-0.01)
        >>> Comparison(100, metric).verdict.startswith("With 100 labels this run contradicts")
        True
        """
        value, ends = self.difference.value, self.difference
        size = (
            f"{100 * value:+.0f} points (95 % interval {_points(ends.low)} to {_points(ends.high)})"
        )
        if self.holds:
            return f"With {self.labels} labels pre-training helps: {size} of accuracy."
        if self.holds is None:
            return (
                f"With {self.labels} labels this run shows no clear difference: {size} of "
                "accuracy. The interval contains 0, so either may be better."
            )
        return (
            f"With {self.labels} labels this run contradicts the lesson: {size} of accuracy. "
            "Other seeds or more pre-training may give another result."
        )


def _points(fraction: float | None) -> str:
    return "unknown" if fraction is None else f"{100 * fraction:+.0f}"


def sentiment_options(workspace: Workspace, labels: int, **more: Any) -> dict[str, Any]:
    """Return the options of a sentiment run: evaluated once, at its end, on the test texts."""
    return {
        "task": "classify",
        "train": workspace.folder / "sentiment/train.tsv",
        "dev": workspace.folder / "sentiment/test.tsv",
        "limit": labels,
        **more,
        "overrides": once_evaluated(workspace.budget.label_steps),
    }


def once_evaluated(steps: int) -> dict[str, Any]:
    """Return overrides: a number of steps, and one evaluation at the end.

    So nothing is selected on the texts that the metrics are computed on.
    """
    return {"steps": steps, "validate_every": 1}


def sentiment_run(workspace: Workspace, model: str, labels: int) -> tuple[FinetuneResult, str]:
    """Fine-tune for sentiment; also return the command."""
    scratch = {"scratch": True} if model == SCRATCH else {}
    options = sentiment_options(workspace, labels, **scratch)
    name = f"sentiment-{'scratch' if scratch else 'pretrained'}-{labels}"
    return workspace.finetune(name, options), workspace.finetune_command(name, options)


def label_efficiency(workspace: Workspace) -> Findings:
    """Compare pre-trained and random weights with few and more labels."""
    results, commands, best = [], [], None
    for labels in workspace.budget.labels:
        for model in (PRETRAINED, SCRATCH):
            run, line = sentiment_run(workspace, model, labels)
            best = run if model == PRETRAINED else best
            test = workspace.folder / "sentiment/test.tsv"
            results.append(_result(model, labels, run, test))
            commands.append(line)
    assert best is not None
    comparisons = compare(results)
    opinions = predict(best.model, list(OPINIONS)).answers
    figures: list[Figure] = [
        _chart(results),
        *(Paragraph(one.verdict, warning=one.holds is not True) for one in comparisons),
        _table(results),
        *(_opinion(text, answer) for text, answer in zip(OPINIONS, opinions, strict=True)),
    ]
    values = {
        "test": len(results[0].correct),
        "rows": [
            {"model": one.model, "labels": one.labels, "accuracy": to_json(one.accuracy)}
            for one in results
        ],
        "comparisons": [
            {**to_json(one), "holds": one.holds, "verdict": one.verdict} for one in comparisons
        ],
        "opinions": opinions,
    }
    middle = len(workspace.budget.labels) // 2 * 2
    return Findings(figures, values, commands[middle : middle + 2])


def _result(model: str, labels: int, run: FinetuneResult, test: Path) -> LabelResult:
    found = predict(run.model, data=test)
    gold = [row[1] for row in table_rows(test)]
    answers = [answer["label"] for answer in found.answers if answer is not None]
    correct = np.array([a == b for a, b in zip(answers, gold, strict=True)], dtype=np.float64)
    return LabelResult(model, labels, means({"accuracy": correct})["accuracy"], correct)


def table_rows(file: Path) -> list[list[str]]:
    """Read the rows of a task file of the stories, without its header."""
    return [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]


def compare(results: list[LabelResult]) -> list[Comparison]:
    """Compute the difference of the two models for each number of labels, with its interval."""
    found = {(one.model, one.labels): one.correct for one in results}
    return [
        Comparison(
            labels,
            means({"difference": found[PRETRAINED, labels] - found[SCRATCH, labels]})["difference"],
        )
        for labels in dict.fromkeys(one.labels for one in results)
    ]


def _chart(results: list[LabelResult]) -> LineChart:
    lines = {
        name: tuple(
            Point(one.labels, one.accuracy.value, one.accuracy.low, one.accuracy.high)
            for one in results
            if one.model == name
        )
        for name in (PRETRAINED, SCRATCH)
    }
    count = len(results[0].correct)
    return LineChart(
        "Label efficiency: is a review positive or negative?",
        "labelled examples",
        "accuracy",
        lines,
        log_x=True,
        caption=f"Accuracy on {count} unseen reviews, where guessing gives about 0.5. The bars are "
        "95 % intervals: other reviews would most likely give a value in that range.",
    )


def _table(results: list[LabelResult]) -> DataTable:
    rows = tuple(
        (one.model, str(one.labels), f"{one.accuracy.value:.1%}", interval(one.accuracy))
        for one in results
    )
    return DataTable("", ("model", "labels", "accuracy", "95 % interval"), rows)


def interval(metric: Metric) -> str:
    """Format an interval in per cent."""
    if metric.low is None or metric.high is None:
        return metric.interval
    return f"{metric.low:.1%} to {metric.high:.1%}"


def _opinion(text: str, answer: Any) -> MarkedText:
    mark = "right" if answer["label"] == "positive" else "wrong"
    label = f"{answer['label']} {answer['score']:.0%}"
    return MarkedText("", (Piece(text, mark, label),))
