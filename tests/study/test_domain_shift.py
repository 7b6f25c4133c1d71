"""The study of domain shift, with made-up runs, and its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.data.stories.reviews import SUBJECTS
from firth.study import domain_shift
from firth.study.cells.domain_cells import (
    GENERAL,
    SOURCE_ROWS,
    TARGET,
    TARGET_ROWS,
    joined_domains,
    review_domains,
)
from firth.study.cells.input_cells import split_task_data
from firth.study.domain_findings import DomainScores, domain_findings
from firth.study.engine.cell import Cell, CellFile
from firth.study.engine.cell_cache import CellCache, CellContext
from firth.study.engine.statistics import Scores, score_values
from firth.utils.errors import FirthError, UsageError

TESTS = 100  # of each domain
RATES = {"scratch": 0.5, "pre-trained": 0.7, "known.txt": 0.7, "target.txt": 0.9}  # on the target


def trained(
    context: CellContext, *, model: Any, data: Cell, options: Mapping[str, Any], **_: Any
) -> Mapping[str, Any]:
    """Be right on 90 % of the source, and as the table says on the target."""
    name = "scratch" if options["scratch"] else "pre-trained"
    if isinstance(model, CellFile):
        file = model.cell.settings["data"].settings["text"]
        name = "target.txt" if isinstance(file, Path) else "known.txt"
    if data.settings["train_on"] == "target":
        name = "target.txt"
    draws = np.random.default_rng(context.seed).random(2 * TESTS)
    right = draws < np.repeat([0.9, RATES[name]], TESTS)
    return {"scores": {"accuracy": score_values(right)}}


def rows(path: Path, labels: str = "ab") -> Path:
    lines = [f"{path.stem} {i},{labels[i % len(labels)]}" for i in range(400)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(domain_shift, "finetuned", trained)
    text = tmp_path / "target.txt"
    text.write_text("Some text.\n")
    both = {"data": rows(tmp_path / "films.csv"), "test": rows(tmp_path / "meals.csv")}
    return {**both, "text": text, "out": tmp_path / "out", "workers": 1, "seeds": 3}


def test_text_of_the_target_helps(files: dict[str, Any]) -> None:
    methods = ("scratch", "pre-trained", "more known text", "target text", "target labels")
    options = {"overrides": {"methods": methods, "test_size": TESTS}}
    found = firth.run_study("domain-shift", **files, **options)
    findings = {finding.name: finding for finding in found.analysis.findings}
    assert found.verdict.name == "domain-adaptive"
    assert found.verdict.holds is True
    assert 10 < found.verdict.value < 30  # 90 % against 70 %
    assert findings["domain-shift-scratch"].holds is True
    assert findings["domain-robust-scratch"].value == pytest.approx(20, abs=8)
    assert findings["domain-labels"].value == 0
    assert [row["method"] for row in found.values()["rows"]] == list(methods)


def test_without_text_only_the_shift_is_measured(files: dict[str, Any]) -> None:
    del files["text"]
    options = {"overrides": {"methods": ("pre-trained", "target text"), "test_size": TESTS}}
    found = firth.run_study("domain-shift", **files, **options)
    assert found.verdict.name == "domain-shift-pre-trained"
    assert any("--text" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"test": None}, "TARGET"),
        ({"data": None, "test": None}, "SOURCE"),
        ({"overrides": {"target": "opera"}}, "opera"),
        ({"overrides": {"target": "book"}}, "different"),
        ({"overrides": {"methods": "luck"}}, "luck"),
    ],
)
def test_wrong_arguments(files: dict[str, Any], given: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        firth.run_study("domain-shift", **{**files, **given})


def test_domains_with_different_labels(files: dict[str, Any], tmp_path: Path) -> None:
    files["test"] = rows(tmp_path / "meals.csv", "ac")
    with pytest.raises(FirthError, match="same labels"):
        firth.run_study("domain-shift", **files)


def test_reviews_of_two_domains(tmp_path: Path) -> None:
    settings = {"source": ["book"], "target": ["meal"], "texts": 40, "rows": 30}
    cache, cell = CellCache(tmp_path), Cell(review_domains, settings)
    cache.run(cell)
    folder = cache.directory(cell)
    tasty = set(SUBJECTS["meal"][1]) - {
        word for kind, (_, good, _) in SUBJECTS.items() if kind != "meal" for word in good
    }
    words = {name: set((folder / name).read_text().split()) for name in (GENERAL, TARGET)}
    assert tasty & {word.strip(".,;") for word in words[TARGET]}
    labelled = [json.loads(line) for line in (folder / SOURCE_ROWS).read_text().splitlines()]
    assert [row["label"] for row in labelled[:3]] == ["negative", "positive", "negative"]
    split = {"task": "classify", "test": None, "test_size": 10, "columns": {}}
    source, target = (
        Cell(split_task_data, {**split, "data": cell / name}) for name in (SOURCE_ROWS, TARGET_ROWS)
    )
    both = Cell(joined_domains, {"source": source, "target": target, "train_on": "target"})
    assert cache.run(both).values == {
        "train": 18,
        "source_test": 10,
        "target_test": 10,
        "multi_label": False,
    }
    joined = (cache.directory(both) / "test.jsonl").read_text()
    parts = [(cache.directory(one) / "test.jsonl").read_text() for one in (source, target)]
    assert joined == "".join(parts)


def test_no_labelled_review_is_in_the_text(tmp_path: Path) -> None:
    settings = {"source": ["book"], "target": ["meal"], "texts": 1500, "rows": 300}
    cache, cell = CellCache(tmp_path), Cell(review_domains, settings)
    cache.run(cell)
    folder = cache.directory(cell)
    texts = {
        text for name in (GENERAL, TARGET) for text in (folder / name).read_text().split("\n\n")
    }
    for name in (SOURCE_ROWS, TARGET_ROWS):
        rows = map(json.loads, (folder / name).read_text().splitlines())
        assert not texts & {row["text"] for row in rows}


def test_scores_of_both_domains() -> None:
    one = DomainScores.of(Scores(np.array([[1.0, 1.0, 0.0]]), np.ones((1, 3))), 2)
    assert (one.source.value, one.target.value) == (1.0, 0.0)


def test_p_values_are_corrected() -> None:
    """A fall whose p-value is between 0.05 / 2 and 0.05 counts alone, not as one of three."""
    places = np.arange(100)
    source, target = (np.tile(right, (2, 1)) for right in (places < 45, places >= 69))
    ones = np.ones((2, 100))
    one = DomainScores(Scores(source, ones), Scores(target, ones))
    alone = domain_findings({"scratch": one})
    both = domain_findings({"scratch": one, "pre-trained": one})
    assert [finding.holds for finding in alone] == [True]
    assert [finding.holds for finding in both] == [None, None, None]
