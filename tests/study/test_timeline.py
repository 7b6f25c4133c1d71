"""The study `timeline`: its table of methods, what it concludes, and small runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth import run_study
from firth.models.presets import PRESETS
from firth.models.presets.task_models import TASK_MODELS
from firth.study.cells.finetuning_cells import example_scores
from firth.study.engine.statistics import Scores
from firth.study.engine.study import StudyInputs
from firth.study.label_curves import labels_to_reach
from firth.study.timeline_data import data_notes
from firth.study.timeline_figures import Timeline, timeline_figures, timeline_rows
from firth.study.timeline_findings import timeline_findings
from firth.study.timeline_models import CNN, DECODER, ENCODER, METHODS, SCRATCH, TASKS, methods_of
from firth.tasks.readers.examples import AnswerSpan, QuestionExample
from firth.utils.errors import InputError, UsageError

SMALL = {"labels": (20, 60), "reference_labels": 60, "test_size": 40, "words": 5000}
TINY = {"labels": (16,), "reference_labels": 16, "test_size": 20, "words": 20_000, "passes": 1}
LSTM = SCRATCH["classify"]


def scores(accuracy: float, examples: int = 100) -> Scores:
    right = np.arange(examples) < round(accuracy * examples)
    rows = np.tile(right, (3, 1)).astype(float)
    return Scores(rows, np.ones_like(rows))


@pytest.fixture
def timeline() -> Timeline:
    """Accuracies with 10, 100 and 1,000 labels: each method needs fewer labels than the last."""
    accuracy = {
        CNN: (0.5, 0.6, 0.8),
        LSTM: (0.5, 0.6, 0.8),
        DECODER: (0.6, 0.8, 0.9),
        ENCODER: (0.7, 0.95, 0.97),
    }
    named = {method.name: method for method in METHODS}
    return Timeline(
        task="classify",
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
    needed = labels_to_reach(timeline.curves, (DECODER, 100), LSTM)
    assert needed.value == pytest.approx(1000)  # 0.8 is the LSTM's accuracy with 1,000
    rows = timeline_rows(timeline)
    assert [row["method"] for row in rows] == [CNN, LSTM, DECODER, ENCODER]
    assert rows[1]["labels_to_reach_next"]["value"] == pytest.approx(1000)
    assert rows[2]["labels_to_reach_next"]["value"] is None  # beyond 1,000 labels
    assert "labels_to_reach_next" not in rows[3]
    assert rows[0]["accuracy on another domain"]["value"] == pytest.approx(0.3)


def test_findings(timeline: Timeline) -> None:
    findings = timeline_findings(timeline)
    verdict, labels, domain = findings
    assert (verdict.name, verdict.holds) == ("timeline", True)
    assert verdict.value == pytest.approx(35.0)
    assert labels.value == pytest.approx(1000)
    assert (domain.holds, domain.value) == (True, pytest.approx(30.0))
    titles = [getattr(figure, "title", "") for figure in timeline_figures(timeline, findings)]
    assert titles[0].endswith("by year")
    assert "What the lectures say" in titles


def test_methods_exist() -> None:
    names = [method.name for method in METHODS]
    assert len(names) == len(set(names))
    for method in METHODS:
        assert set(method.tasks) <= set(TASKS)
        assert method.preset == "" or method.preset in PRESETS
        assert method.model == "" or set(method.tasks) <= set(TASK_MODELS[method.model].tasks)
        assert 1950 < method.year < 2030


def test_answers_to_questions_are_scored_as_by_squad() -> None:
    """F1 of "the blue house" against "blue house" is 1: articles do not count."""
    gold = (AnswerSpan(text="blue house", start=4),)
    example = QuestionExample(id="1", question="Where?", context="the blue house", answers=gold)
    answers = [{"answer": "the blue house"}, {"answer": "house"}, {"answer": ""}]
    found = example_scores("span", [example] * 3, answers)
    assert found["f1"]["numerators"] == pytest.approx([1.0, 2 / 3, 0.0])


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


def rows_of_a_tiny_run(task: str, out: Path, **options: Any) -> list[dict[str, Any]]:
    overrides = TINY | options.pop("overrides", {})
    found = run_study("timeline", task=task, out=out, seeds=1, overrides=overrides, **options)
    assert found.failures == []
    rows: list[dict[str, Any]] = found.values()["rows"]
    return rows


@pytest.mark.nightly
@pytest.mark.parametrize("task", TASKS)
def test_every_method_of_every_task_runs(task: str, tmp_path: Path) -> None:
    rows = rows_of_a_tiny_run(task, tmp_path, overrides={"steps": 4})
    assert [row["method"] for row in rows] == [method.name for method in methods_of(task)]
    metric = {"classify": "accuracy", "lm": "bits per byte"}.get(task, "f1")
    assert all(0 <= row[metric]["value"] < 10 for row in rows)
    assert all(row["parameters"] > 0 for row in rows)
    assert all(
        ("pretraining_seconds" in row) == bool(method.preset)
        for row, method in zip(rows, methods_of(task), strict=True)
    )


# ---- bad input


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choice"):
        run_study("timeline", out=tmp_path, task="choice")
    with pytest.raises(UsageError, match="no method"):
        run_study("timeline", out=tmp_path, overrides=SMALL | {"methods": ("perceptron",)})
    text = tmp_path / "corpus.txt"
    text.write_text("The only sentence.\n")
    with pytest.raises(InputError, match=r"corpus\.txt has 1 document"):
        run_study("timeline", out=tmp_path, task="lm", text=text)
    with pytest.raises(UsageError, match="one text"):
        run_study("timeline", out=tmp_path, task="lm", text=text, data=text)
    labelled = tmp_path / "one.tsv"
    labelled.write_text("text\tlabel\n" + "good\tyes\n" * 30)
    with pytest.raises(InputError, match=r"one\.tsv has fewer than two labels: yes"):
        run_study("timeline", out=tmp_path, data=labelled)


def test_fewer_labels_than_asked_is_a_note(tmp_path: Path) -> None:
    labelled = tmp_path / "few.tsv"
    labelled.write_text("text\tlabel\n" + "good\tyes\nbad\tno\n" * 15)
    methods = {"methods": ("bag of words", "word n-grams"), "words": 5000}
    found = run_study(
        "timeline", out=tmp_path, data=labelled, seeds=1, workers=1, overrides=methods
    )
    assert {row["labels"] for row in found.values()["rows"]} == {18}
    assert any("18 training examples" in note for note in found.notes)


def test_tags_that_break_bio_are_a_note(tmp_path: Path) -> None:
    file = tmp_path / "tags.conll"
    file.write_text("Ann B-PER\nruns O\n\nA O\ncat I-PER\n")
    (note,) = data_notes(StudyInputs(data=file), "tag")
    assert "tags.conll" in note
    assert "line 5" in note


@pytest.mark.nightly
def test_vectors_without_overlap_fail_alone(tmp_path: Path) -> None:
    """Words of another language have no vector: these rows fail, the others have scores."""
    labelled = tmp_path / "other.tsv"
    labelled.write_text("text\tlabel\n" + "schön\tja\nübel\tnein\n" * 30)
    methods = ("bag of words", LSTM, f"{LSTM} + word2vec")
    found = run_study(
        "timeline",
        out=tmp_path / "out",
        data=labelled,
        seeds=1,
        workers=1,
        overrides=TINY | {"methods": methods, "steps": 2},
    )
    rows = {row["method"]: row for row in found.values()["rows"]}
    assert "accuracy" in rows["bag of words"]
    assert "accuracy" in rows[LSTM]
    assert "vector" in rows[methods[2]]["error"]
    assert {failure["reason"] for failure in found.failures} == {rows[methods[2]]["error"]}
