"""The study `timeline`: its table of methods, what it concludes, and a small run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from firth import run_study
from firth.models.presets import PRESETS
from firth.models.presets.task_models import TASK_MODELS
from firth.study.engine.statistics import Scores
from firth.study.label_curves import labels_to_reach
from firth.study.timeline_figures import Timeline, timeline_figures, timeline_rows
from firth.study.timeline_findings import timeline_findings
from firth.study.timeline_models import CNN, DECODER, ENCODER, METHODS, SCRATCH, TASKS
from firth.utils.errors import UsageError

SMALL = {"labels": (20, 60), "reference_labels": 60, "test_size": 40, "words": 5000}


def scores(accuracy: float, examples: int = 100) -> Scores:
    right = np.arange(examples) < round(accuracy * examples)
    rows = np.tile(right, (3, 1)).astype(float)
    return Scores(rows, np.ones_like(rows))


@pytest.fixture
def timeline() -> Timeline:
    """Accuracies with 10, 100 and 1,000 labels: each method needs fewer labels than the last."""
    accuracy = {
        CNN: (0.5, 0.6, 0.8),
        SCRATCH: (0.5, 0.6, 0.8),
        DECODER: (0.6, 0.8, 0.9),
        ENCODER: (0.7, 0.95, 0.97),
    }
    named = {method.name: method for method in METHODS}
    return Timeline(
        metric="accuracy",
        reference=100,
        methods=tuple(named[name] for name in accuracy),
        curves={
            (name, count): scores(value)
            for name, values in accuracy.items()
            for count, value in zip((10, 100, 1000), values, strict=True)
        },
        other_domain={name: scores(0.3) for name in accuracy},
        cost={name: {"seconds": 1.0, "parameters": 10} for name in accuracy},
        errors={},
    )


def test_labels_to_reach_the_next_row(timeline: Timeline) -> None:
    needed = labels_to_reach(timeline.curves, (DECODER, 100), SCRATCH)
    assert needed.value == pytest.approx(1000)  # 0.8 is the LSTM's accuracy with 1,000
    rows = timeline_rows(timeline)
    assert [row["method"] for row in rows] == [CNN, SCRATCH, DECODER, ENCODER]
    assert rows[1]["labels_to_reach_next"]["value"] == pytest.approx(1000)
    assert rows[2]["labels_to_reach_next"]["value"] is None  # beyond 1,000 labels
    assert "labels_to_reach_next" not in rows[3]
    assert rows[0]["accuracy on another domain"]["value"] == pytest.approx(0.3)


def test_findings(timeline: Timeline) -> None:
    verdict, labels, domain = timeline_findings(timeline)
    assert (verdict.name, verdict.holds) == ("timeline", True)
    assert verdict.value == pytest.approx(35.0)
    assert labels.value == pytest.approx(1000)
    assert (domain.holds, domain.value) == (True, pytest.approx(30.0))
    titles = [getattr(figure, "title", "") for figure in timeline_figures(timeline)]
    assert titles[0].endswith("by year")
    assert "What the lectures say" in titles


def test_methods_exist() -> None:
    names = [method.name for method in METHODS]
    assert len(names) == len(set(names))
    for method in METHODS:
        assert set(method.tasks) <= set(TASKS)
        assert not method.preset or method.preset in PRESETS
        for task, model in method.model.items():
            assert task in TASK_MODELS[model].tasks
        assert 1950 < method.year < 2030


def test_a_small_run(tmp_path: Path) -> None:
    methods = {"methods": ("bag of words", "word n-grams")}
    found = run_study("timeline", out=tmp_path, seeds=1, workers=1, overrides=SMALL | methods)
    rows = found.values()["rows"]
    assert [(row["year"], row["method"]) for row in rows] == [
        (1998, "bag of words"),
        (2012, "word n-grams"),
    ]
    assert rows[1]["parameters"] > rows[0]["parameters"] > 0
    assert 0.5 < rows[0]["accuracy"]["value"] <= 1.0
    assert (tmp_path / "index.html").is_file()


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choice"):
        run_study("timeline", out=tmp_path, task="choice")
    with pytest.raises(UsageError, match="no method"):
        run_study("timeline", out=tmp_path, overrides=SMALL | {"methods": ("perceptron",)})
