"""The study of labels, with made-up runs, and its files and messages."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.study import labels as study
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.utils.errors import InputError, Interrupted, UsageError
from tests.conftest import Result

EXAMPLES = 300
OPTIONS: dict[str, Any] = {"overrides": {"methods": ("pre-trained", "scratch"), "test_size": 300}}


def learned(
    context: CellContext, *, labels: int, options: Mapping[str, Any], **_: Any
) -> Mapping[str, Any]:
    """Be right more often with more labels; without pre-training ten times as many are needed."""
    effective = labels / 10 if options["scratch"] else labels
    rate = min(1.0, 0.5 + 0.1 * math.log10(max(1.0, effective)))
    draws = np.random.default_rng(context.seed + labels).random(EXAMPLES) < rate
    return {"scores": {"accuracy": score_values(draws)}}


def broken(context: CellContext, *, options: Mapping[str, Any], **settings: Any) -> Any:
    """Fail without pre-training."""
    if options["scratch"]:
        raise InputError("labels.tsv line 3 is bad.")
    return learned(context, options=options, **settings)


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    file = tmp_path / "reviews.tsv"
    rows = [
        f"{'good' if i % 2 else 'bad'} book {i}\t{'yes' if i % 2 else 'no'}" for i in range(2000)
    ]
    file.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return file


def test_the_horizontal_gap_is_found(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "finetuned", learned)
    found = firth.run_study("labels", data=reviews, out=tmp_path / "out", workers=1, **OPTIONS)
    assert found.verdict.low < 1000 < (found.verdict.high or math.inf)  # ten times 100
    assert found.verdict.holds is True
    assert len(found.values()["rows"]) == 2 * 5
    assert any("held out" in note for note in found.notes)
    lines = (tmp_path / "out/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["labels"] for line in lines[:5]] == [10, 30, 100, 300, 1000]
    assert (tmp_path / "out/figure.png").stat().st_size > 10_000
    page = (tmp_path / "out/index.html").read_text()
    assert found.verdict.text in page
    assert "100 examples + GPT-2 &gt; 10,000 from scratch" in page


def test_a_score_above_the_curve_is_beyond_the_data(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "finetuned", learned)
    options = {"overrides": {**OPTIONS["overrides"], "reference_labels": 1000}}
    found = firth.run_study("labels", data=reviews, out=tmp_path / "out", workers=1, **options)
    assert found.verdict.high is None
    assert (found.verdict.value, found.verdict.beyond) == (None, 1000)
    assert "beyond the data" in found.verdict.text


def test_a_method_that_fails_is_named(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "finetuned", broken)
    found = firth.run_study("labels", data=reviews, out=tmp_path / "out", workers=1, **OPTIONS)
    assert len(found.failures) == 5 * 5
    assert found.verdict.holds is None
    rows = [row for row in found.values()["rows"] if row["method"] == "scratch"]
    assert [row["labels"] for row in rows] == [10, 30, 100, 300, 1000]
    assert {row["error"] for row in rows} == {"labels.tsv line 3 is bad."}
    assert "labels.tsv line 3 is bad." in (tmp_path / "out/index.html").read_text()


def test_several_labels_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "finetuned", learned)
    file = tmp_path / "topics.jsonl"
    rows = [{"text": f"text {i}", "label": [["a"], ["a", "b"]][i % 2]} for i in range(200)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"overrides": {"methods": ("pre-trained", "TF-IDF", "prompting"), "labels": (10, 30)}}
    found = firth.run_study("labels", data=file, out=tmp_path / "out", workers=1, **options)
    assert {row["method"] for row in found.values()["rows"]} == {"pre-trained"}
    assert any("TF-IDF" in note for note in found.notes)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (["good\tyes"] * 9 + ["bad\tno"] * 3, "too few"),
        ([f"good {i}\tyes" for i in range(90)], "two labels"),
    ],
)
def test_bad_data(rows: list[str], why: str, tmp_path: Path) -> None:
    file = tmp_path / "few.tsv"
    file.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    with pytest.raises(firth.FirthError, match=why):
        firth.run_study("labels", data=file, out=tmp_path / "out", workers=1)


def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="label"):
        firth.run_study("lables", out=tmp_path)
    with pytest.raises(UsageError, match="small, medium, large"):
        firth.run_study("labels", out=tmp_path, budget="huge")
    with pytest.raises(UsageError, match="test_size"):
        firth.run_study("labels", out=tmp_path, overrides={"test_sise": 3})
    with pytest.raises(UsageError, match="text"):
        firth.run_study("labels", out=tmp_path, text=__file__)
    with pytest.raises(InputError, match="nosuch"):
        firth.run_study("labels", out=tmp_path, data="nosuch.tsv")


def test_the_list_of_studies(firth_here: Callable[..., Result]) -> None:
    found = json.loads(firth_here("study", "--json").stdout)["studies"]
    assert found[0]["study"] == "labels"
    assert found[0]["settings"]["labels"]["large"][-1] == 10_000


def terminated(context: CellContext, **_: Any) -> Any:
    """Be terminated, as by a job scheduler."""
    os.kill(os.getpid(), signal.SIGTERM)
    return {}


def test_a_signal_to_end_says_that_the_study_can_be_continued(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "finetuned", terminated)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted, match="continues"):
        firth.run_study("labels", data=reviews, out=tmp_path / "out", workers=1, **OPTIONS)
    assert signal.getsignal(signal.SIGTERM) is before
