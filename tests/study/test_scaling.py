"""The study of scaling: with made-up losses of a known law, and one small run in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.models.transformer import Transformer
from firth.study import scaling as study
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.study.scaling import ScalingSettings
from firth.study.scaling_law import ScalingLaw
from firth.utils.errors import InputError, UsageError

LAW = ScalingLaw(
    irreducible_loss=1.5,
    size_factor=30.0,
    size_exponent=0.4,
    token_factor=200.0,
    token_exponent=0.5,
)
OPTIONS: dict[str, Any] = {"overrides": {"vocab_size": 130}, "workers": 1}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    words = [f"{name} went to the {place}." for name in "Ann Bob Eve".split() for place in "abcdef"]
    rng = np.random.default_rng(0)
    documents = [" ".join(rng.choice(words, 40)) for _ in range(60)]
    file.write_text("\n\n".join(documents))
    return file


def untrained(context: CellContext, **_: Any) -> Mapping[str, Any]:
    """Train nothing."""
    return {"scores": {}}


def on_the_law(context: CellContext, *, model: Any, **_: Any) -> Mapping[str, Any]:
    """Return the loss of the law with some noise."""
    options = model.cell.settings["options"]
    size = ScalingSettings().parameters(options["overrides"]["model.hidden_size"])
    loss = float(LAW.loss(size, options["tokens"]))
    noise = np.random.default_rng([context.seed, options["tokens"], size]).normal(0, 0.01, 20)
    return {"scores": {"loss": score_values(loss + noise)}}


def without_one_size(context: CellContext, *, model: Any, **settings: Any) -> Mapping[str, Any]:
    """Fail for the smallest model and for the largest."""
    if model.cell.settings["options"]["overrides"]["model.hidden_size"] in (16, 64):
        raise InputError("out of memory.")
    return on_the_law(context, model=model, **settings)


def test_a_law_predicts_the_largest_run(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "pretrained", untrained)
    monkeypatch.setattr(study, "validated", on_the_law)
    found = firth.run_study("scaling", text=corpus, seeds=3, out=tmp_path / "out", **OPTIONS)
    assert found.verdict.holds is True
    assert found.verdict.low <= LAW.token_exponent <= found.verdict.high
    by_name = {finding.name: finding for finding in found.analysis.findings}
    assert by_name["prediction"].holds is True
    assert by_name["model-size"].holds is True
    assert by_name["compute-optimal"].value == pytest.approx(0.5 / 0.9, abs=0.05)
    assert any("epochs" in note for note in found.notes)  # the text is short
    rows = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 3 + 1
    assert rows[-1]["predicted"]["low"] < rows[-1]["loss"]["value"] < rows[-1]["predicted"]["high"]
    names = [cell.name for cell in found.cells]
    stored = names.index("prediction of the largest run")
    assert [name.split(", seed")[0] for name in names[stored + 1 :]] == [
        "106,496 parameters, 240,000 tokens"
    ] * 3  # the largest run begins after its prediction


def test_failed_sizes_are_left_out(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "pretrained", untrained)
    monkeypatch.setattr(study, "validated", without_one_size)
    found = firth.run_study("scaling", text=corpus, seeds=1, out=tmp_path / "out", **OPTIONS)
    assert {one["reason"] for one in found.failures} == {"out of memory."}
    by_name = {finding.name: finding for finding in found.analysis.findings}
    assert by_name["power-law"].holds is True
    assert by_name["prediction"].holds is None
    assert len(found.values()["rows"]) == 3 * 3


def test_parameters_are_those_of_the_layers() -> None:
    from firth.models.presets import preset

    config = preset("decoder-tiny").config
    settings = ScalingSettings(num_layers=config.num_layers)
    network = Transformer(config, ["language"])
    matrices = [
        weight
        for name, weight in network.named_parameters()
        if "blocks" in name and weight.ndim > 1
    ]
    gated = config.num_layers * 3 * config.hidden_size
    difference = gated * (3 * config.hidden_size - config.ffn_size)  # the study's are wider
    assert settings.parameters(config.hidden_size) == (
        sum(weight.numel() for weight in matrices) + difference
    )


def test_misuse(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(UsageError, match="masked"):
        ScalingSettings(objective="replaced")
    with pytest.raises(UsageError, match="tokens needs at least 3"):
        ScalingSettings(tokens=(1000, 2000))
    with pytest.raises(UsageError, match="largest_hidden_size"):
        ScalingSettings(largest_hidden_size=32)
    short = tmp_path / "short.txt"
    short.write_text("One document only.")
    with pytest.raises(firth.FirthError):
        firth.run_study("scaling", text=short, out=tmp_path / "out", workers=1)


@pytest.mark.nightly
def test_a_small_study(corpus: Path, tmp_path: Path) -> None:
    settings = {
        "hidden_sizes": (16, 24, 32),
        "tokens": (2000, 4000, 8000),
        "largest_hidden_size": 48,
        "largest_tokens": 10_000,
        "vocab_size": 130,
    }
    for objective in ("causal", "masked"):
        found = firth.run_study(
            "scaling",
            text=corpus,
            seeds=1,
            out=tmp_path / objective,
            overrides={**settings, "objective": objective},
            workers=1,
        )
        rows = found.values()["rows"]
        assert len(rows) == 10
        assert rows[8]["loss"]["value"] < rows[0]["loss"]["value"]
        assert not found.failures
