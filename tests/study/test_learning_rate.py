"""The study of learning rates, with made-up runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import entropy

import firth
from firth.study import finetuning_grid
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import Scores, score_values
from firth.study.learning_rate import guessing_loss
from firth.study.learning_rate_findings import good_range
from firth.training.loop import Diverged
from firth.utils.errors import UsageError

RECIPE = 2e-5 * (768 / 192) ** 2  # sentiment, for the hidden size of stories-encoder


def trained(context: CellContext, *, options: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
    """Learn best at the recipe's rate; diverge far above it, learn nothing far below."""
    factor = options.get("learning_rate", RECIPE) / RECIPE
    if factor > 50:
        raise Diverged("The loss is not finite.")
    rate = 0.9 if 0.2 < factor < 5 else 0.5
    draws = np.random.default_rng(context.seed).random(300) < rate
    return {"scores": {"accuracy": score_values(draws)}, "train_loss": 0.1 if rate > 0.5 else 0.7}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr(finetuning_grid, "finetuned", trained)
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(400)))
    return {"data": file, "out": tmp_path / "out", "workers": 1, "seeds": 3}


def test_the_range_of_good_rates_and_where_runs_fail(made_up: dict[str, Any]) -> None:
    found = firth.run_study("learning-rate", **made_up)
    findings = {finding.name: finding for finding in found.analysis.findings}
    assert found.verdict.name == "recipe-rate"
    assert found.verdict.holds is True
    assert findings["rate-range"].value == pytest.approx(10)  # 0.3 to 3
    assert findings["rate-breaks"].value == 10
    assert findings["rate-too-high"].holds is True
    assert findings["rate-too-low"].holds is True
    rows = {row["factor"]: row for row in found.values()["rows"]}
    assert rows[1.0]["learning_rate"] == pytest.approx(RECIPE)
    assert [rows[factor]["failed"] for factor in (0.01, 1.0, 10.0, 100.0)] == [3, 0, 3, 3]
    assert "accuracy" not in rows[100.0]
    assert "not finite" in rows[100.0]["error"]


def test_factors_are_positive(made_up: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="factors"):
        firth.run_study("learning-rate", overrides={"factors": "0,1"}, **made_up)


def test_guessing_is_the_entropy_of_the_labels(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    rows = [{"text": "a", "label": label} for label in ["x"] * 3 + ["y"]]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert guessing_loss(file) == pytest.approx(entropy([3, 1]))
    file.write_text(json.dumps({"words": ["a", "b"], "tags": ["O", "B-X"]}))
    assert guessing_loss(file) == pytest.approx(math.log(2))
    file.write_text(json.dumps({"question": "?", "context": "a", "answers": {}}))
    assert guessing_loss(file) is None


def test_a_good_range_ends_at_the_first_lower_score() -> None:
    made = {
        factor: Scores(np.full((3, 50), value), np.ones((3, 50)))
        for factor, value in {0.1: 0.9, 0.3: 0.5, 1.0: 0.9, 3.0: 0.9, 10.0: 0.8}.items()
    }
    assert good_range(made, 1.0) == (1.0, 3.0)
