"""The study of masking: with made-up losses, and one small run in full."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.study import masking as study
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import Scores, score_values
from firth.study.masking import MaskingSettings, variants
from firth.study.masking_findings import task_findings
from firth.utils.errors import InputError, UsageError
from tests.study.test_scaling import corpus, untrained

__all__ = ["corpus"]  # a fixture
OPTIONS: dict[str, Any] = {"overrides": {"vocab_size": 130}, "workers": 1}


def best_at_30(context: CellContext, *, model: Any, **_: Any) -> Mapping[str, Any]:
    """Return a loss that is lowest at 30 %, and higher with static masks and with [MASK] alone."""
    settings = model.cell.settings["options"]
    given = {
        name.removeprefix("objective."): value for name, value in settings["overrides"].items()
    }
    loss = 2 + abs(np.log(given["mask_prob"] / 0.3))
    loss += 0.5 * bool(given.get("static")) + 0.5 * (given.get("keep_prob") == 0.0)
    rng = np.random.default_rng([context.seed, *settings["objective"].encode()])
    values = loss + rng.normal(0, 0.05, 20)
    return {"scores": {"loss": score_values(values), "accuracy": score_values(1 / values)}}


def without_spans(context: CellContext, *, model: Any, **settings: Any) -> Mapping[str, Any]:
    """Fail with span masking."""
    if model.cell.settings["options"]["objective"] == "masked-spans":
        raise InputError("spans do not fit.")
    return best_at_30(context, model=model, **settings)


def run(corpus: Path, out: Path, seeds: int = 3) -> dict[str, Any]:
    found = firth.run_study("masking", text=corpus, seeds=seeds, out=out, **OPTIONS)
    return {"result": found} | {finding.name: finding for finding in found.analysis.findings}


def test_the_best_masking_is_found(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "pretrained", untrained)
    monkeypatch.setattr(study, "validated", best_at_30)
    found = run(corpus, tmp_path / "out")
    verdict = found["result"].verdict
    assert (verdict.name, verdict.holds) == ("mask-15", False)
    assert "30 %" in verdict.text
    assert verdict.value == pytest.approx(-np.log(2), abs=0.05)
    assert found["dynamic"].holds is True
    assert found["mask-80-10-10"].holds is True
    assert found["whole-words"].holds is None  # as good as tokens
    rows = found["result"].values()["rows"]
    assert [row["masking"] for row in rows] == list(variants(MaskingSettings()))
    assert len(rows) == 5 + 3 + 3
    assert "15%: Empirically optimal" in (tmp_path / "out/index.html").read_text()


@pytest.mark.nightly
def test_a_masking_that_fails_is_named(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "pretrained", untrained)
    monkeypatch.setattr(study, "validated", without_spans)
    found = run(corpus, tmp_path / "out", seeds=1)
    assert "spans" not in found
    assert found["result"].values()["rows"][-2]["error"] == "spans do not fit."


def test_fine_tuned_models_are_compared() -> None:
    rng = np.random.default_rng(0)
    right = {"15 %": 0.8, "100/0/0": 0.6, "spans": 0.95}
    scores = {
        name: Scores.of([score_values(rng.random(300) < rate) for _ in range(3)])
        for name, rate in right.items()
    }
    found = {finding.name: finding for finding in task_findings(scores)}
    assert found["task-80-10-10"].holds is True
    assert found["task-80-10-10"].value == pytest.approx(20, abs=5)
    assert found["task-spans"].holds is True
    assert task_findings({}) == []


def test_options_of_the_objectives() -> None:
    named = variants(MaskingSettings())
    assert named["80/0/20"] == (
        "masked",
        {"mask_prob": 0.15, "keep_prob": 0.2, "random_prob": 0.0},
    )
    assert named["static"] == ("masked", {"mask_prob": 0.15, "static": True})
    assert named["whole words"][0] == "masked-words"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"mask_probs": (0.3,)}, "0.15"),
        ({"replacements": ("80/10",)}, "80/10/10"),
        ({"others": ("letters",)}, "letters"),
    ],
)
def test_misuse(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        MaskingSettings(**settings)


@pytest.mark.nightly
def test_a_small_study(corpus: Path, tmp_path: Path) -> None:
    settings = {
        "mask_probs": (0.15, 0.5),
        "replacements": ("100/0/0",),
        "tokens": 4000,
        "start_tokens": 4000,
        "vocab_size": 130,
        "labels": 10,
        "hidden_size": 32,
    }
    found = firth.run_study(
        "masking", text=corpus, seeds=1, out=tmp_path / "out", overrides=settings, workers=1
    )
    assert not found.failures
    rows = found.values()["rows"]
    assert len(rows) == 2 + 1 + 3
    assert all({"loss", "accuracy", "fine-tuned accuracy"} <= row.keys() for row in rows)
