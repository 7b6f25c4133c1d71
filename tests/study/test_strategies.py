"""The study of strategies, with made-up runs and costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.metrics.bootstrap import Metric
from firth.study import finetuning_grid, strategies
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import Difference, score_values
from firth.study.strategy_findings import full_is_best, memory_ratio, time_ratio
from firth.utils.errors import InputError, UsageError

RATES = {"full": 0.9, "lora:1": 0.9, "probe": 0.5}  # accuracy
TRAINED = {"full": 1000, "lora:1": 12, "probe": 2}
COST = {"gradients": 10, "optimizer": 20, "memory": 100, "seconds": 2.0}


def trained(context: CellContext, *, options: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
    """Be right as often as the table says; freezing fails."""
    name = options["strategy"]
    if name not in RATES:
        raise InputError(f"{name} is broken.")
    draws = np.random.default_rng(context.seed).random(300) < RATES[name]  # paired
    counts = {"trainable_parameters": TRAINED[name], "parameters": 1000, "saved_bytes": 50}
    return {"scores": {"accuracy": score_values(draws)}, **counts}


def cost(context: CellContext, *, options: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
    """Return costs; full fine-tuning needs four times the memory."""
    factor = 4 if options["strategy"] == "full" else 1
    return {name: factor * value for name, value in COST.items()}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr(finetuning_grid, "finetuned", trained)
    monkeypatch.setattr(strategies, "estimated_cost", cost)
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(400)]
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows))
    return {"data": file, "out": tmp_path / "out", "workers": 1, "seeds": 3}


def test_strategies_are_compared_with_full_fine_tuning(made_up: dict[str, Any]) -> None:
    names = "lora:1,probe,freeze:half"
    found = firth.run_study("strategies", overrides={"strategies": names}, **made_up)
    findings = {finding.name: finding for finding in found.analysis.findings}
    assert found.verdict.name == "lora-same-score"
    assert found.verdict.holds is True
    assert "1.2 %" in found.verdict.text
    assert found.verdict.value == 0.0  # the same answers
    assert findings["probe-same-score"].holds is False
    assert findings["lora-memory"].value == 4.0
    assert findings["lora-memory"].holds is False
    assert findings["full-best"].holds is None  # LoRA is as good
    rows = {row["strategy"]: row for row in found.values()["rows"]}
    assert list(rows) == ["full", "lora:1", "probe", "freeze:2"]
    assert rows["freeze:2"]["error"] == "freeze:2 is broken."
    assert rows["probe"]["p"] < 0.01
    assert rows["probe"]["stored_bytes"] == 50
    assert (made_up["out"] / "figure.png").stat().st_size > 10_000


def test_an_unknown_strategy_is_named(made_up: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="lroa"):
        firth.run_study("strategies", overrides={"strategies": "lroa"}, **made_up)


@pytest.mark.parametrize(
    ("values", "holds"), [([-1.0, -1.0], True), ([-1.0, 1.0], False), ([-1.0, 0.0], None)]
)
def test_full_fine_tuning_is_best_if_all_others_are_worse(
    values: list[float], holds: bool | None
) -> None:
    made = {
        str(i): Difference(Metric(value=value, low=value, high=value), 0.01 if value else 1.0)
        for i, value in enumerate(values)
    }
    assert full_is_best(made).holds is holds


def test_the_ratio_of_memory() -> None:
    full = {"memory": 1000, "gradients": 300, "optimizer": 600}
    own = {"memory": 10, "gradients": 1, "optimizer": 2}
    (found,) = memory_ratio("lora", own, full)
    assert found.value == 100
    assert found.holds is True
    assert "300 times" in found.text
    assert memory_ratio("lora", {}, full) == []


@pytest.mark.parametrize(
    ("seconds", "holds"), [(5.0, True), (9.5, None), (10.5, None), (20, False)]
)
def test_the_ratio_of_times(seconds: float, holds: bool | None) -> None:
    (found,) = time_ratio("freeze:2", {"seconds": seconds}, {"seconds": 10.0})
    assert found.value == pytest.approx(10 / seconds)
    assert found.holds is holds
