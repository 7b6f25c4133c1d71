"""The study of forgetting, with made-up runs, and its measures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.study import forgetting
from firth.study.cells.forgetting_cells import (
    HELD_OUT,
    LOSS,
    NEW_HEAD,
    OLD_HEAD,
    REPLAYED,
    ProbeData,
    fit_head,
    head_scores,
    language_losses,
    language_texts,
)
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache, CellContext
from firth.study.engine.statistics import Scores, score_values
from firth.study.forgetting_findings import fraction_avoided
from firth.utils.errors import InputError, MismatchError, UsageError

LOSSES = {"full": 0.5, "lora": 0.35, "freeze:2": 0.6}  # 0.3 before
SEQUENCE = np.linspace(-0.01, 0.01, 50)


def measured(rise: float, right: float) -> dict[str, Any]:
    accuracy = score_values(np.arange(50) < 50 * right)
    loss = score_values(rise + SEQUENCE)
    return {"accuracy": accuracy, LOSS: loss, OLD_HEAD: accuracy, NEW_HEAD: accuracy}


def before(context: CellContext, **_: Any) -> Mapping[str, Any]:
    return {"scores": measured(0.3, 1.0)}


def after(context: CellContext, *, options: Any, replay: bool, **_: Any) -> Mapping[str, Any]:
    """Forget as the table says; replay forgets nothing."""
    loss = (
        0.3 if replay else LOSSES[options["strategy"]] + (0.5 if "learning_rate" in options else 0)
    )
    return {"scores": measured(loss, 0.8)}


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    monkeypatch.setattr(forgetting, "before_finetuning", before)
    monkeypatch.setattr(forgetting, "after_finetuning", after)
    file = tmp_path / "rows.csv"
    file.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(400)))
    return {"data": file, "out": tmp_path / "out", "workers": 1, "seeds": 2}


def test_how_much_of_the_rise_is_avoided(made_up: dict[str, Any]) -> None:
    methods = ("full", "replay", "freeze half", "LoRA", "learning rate x 10")
    found = firth.run_study("forgetting", overrides={"methods": methods}, **made_up)
    findings = {finding.name: finding for finding in found.analysis.findings}
    assert found.verdict.name == "forgetting"
    assert found.verdict.value == pytest.approx(0.2)
    assert found.verdict.holds is True
    assert findings["forgetting-replay"].value == pytest.approx(1.0)
    assert findings["forgetting-lora"].value == pytest.approx(0.75)
    assert findings["forgetting-freeze-half"].value == pytest.approx(-0.5)
    assert findings["forgetting-freeze-half"].holds is False
    assert findings["forgetting-high-rate"].value == pytest.approx(0.5)
    assert findings["forgetting-other-task"].value == pytest.approx(20)
    assert [row["method"] for row in found.values()["rows"]] == ["before", *methods]


def test_what_cannot_be_measured(made_up: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="sleep"):
        firth.run_study("forgetting", overrides={"methods": "sleep"}, **made_up)


def test_the_fraction_avoided_is_exact_without_noise() -> None:
    one, two, three = (Scores(np.full((2, 9), value), np.ones((2, 9))) for value in (1.0, 3.0, 1.5))
    assert fraction_avoided(one, two, three).metric.value == pytest.approx(0.75)


def test_texts_to_replay_are_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(f"passage {i}" for i in range(20)))
    settings = {"text": file, "held_out": None, "measured": 3, "replayed": 100}
    cache, cell = CellCache(tmp_path / "cells"), Cell(language_texts, settings)
    assert cache.run(cell).values == {HELD_OUT: 3, REPLAYED: 16}
    written = (cache.directory(cell) / HELD_OUT).read_text().split("\n\n")
    assert [line.strip() for line in written] == ["passage 0", "passage 5", "passage 10"]
    file.write_text("one\n\ntwo")
    with pytest.raises(InputError, match=r"text\.txt"):
        cache.run(Cell(language_texts, settings, seed=1))


@pytest.mark.parametrize("labels", ["ab", "abc"])
def test_a_fitted_head_is_that_of_scikit_learn(labels: str) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    right = [labels[i % len(labels)] for i in range(60)]
    vectors = rng.normal(size=(60, 5)) + np.array([[ord(one)] for one in right])
    data = ProbeData(vectors[:40], right[:40], vectors[40:], right[40:])
    peer = make_pipeline(StandardScaler(), LogisticRegression(C=0.1)).fit(data.train, right[:40])
    found = head_scores(data, fit_head(data))["numerators"]
    assert found == (peer.predict(data.test) == np.array(right[40:])).astype(float).tolist()


def test_the_language_modelling_loss_of_an_embedded_model(tmp_path: Path) -> None:
    model = firth.load("stories-encoder")
    file = tmp_path / "text.txt"
    file.write_text("The old man opened the door and went into the garden.\n\n" * 3)
    right = Scores.of([language_losses(model, file)])
    file.write_text("Door garden the the went opened into man and old the.\n\n" * 3)
    assert right.numerators.shape == (1, 3)
    assert right.value < Scores.of([language_losses(model, file)]).value
    del model.network.heads["language"]
    with pytest.raises(MismatchError, match="language head"):
        language_losses(model, file)
