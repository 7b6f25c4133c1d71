"""Models that are fitted without the training loop have the run directory of every run.

The fitted model is an untrained Transformer, which stands for any row of the table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.jobs.fitted_pretraining import SCRATCH
from firth.jobs.pretrain_result import PretrainResult
from firth.jobs.pretraining import pretrain
from firth.models.initialization import initialise
from firth.models.presets import PRESETS, preset
from firth.models.transformer import Transformer
from firth.training.fitted_objectives import FITTED
from firth.training.fitting import FitInputs, FittedObjective
from firth.training.run_directory import read_metrics, read_run
from firth.utils.errors import FirthError, UsageError
from tests.training.conftest import SMALL


def fit(inputs: FitInputs) -> Transformer:
    assert inputs.scratch.is_dir()
    for epoch in range(1, inputs.options["epochs"] + 1):
        done, tokens = epoch / inputs.options["epochs"], epoch * inputs.shards.tokens
        inputs.log({"step": epoch, "loss": 1 / epoch, "tokens": tokens, "progress": done})
        inputs.progress("fitting", epoch, inputs.options["epochs"])
    inputs.note(f"Fitted on {inputs.shards.tokens} tokens.")
    if inputs.options["fail"]:
        (inputs.scratch / "half-written").touch()
        raise FirthError("failed")
    return initialise(Transformer(inputs.config, ["language"]), inputs.seed)


@pytest.fixture(autouse=True)
def fitted_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = FittedObjective(about="", source="", fit=fit, options={"epochs": 2, "fail": False})
    monkeypatch.setitem(FITTED, "fitted", row)
    like = replace(preset("decoder-tiny"), name="fitted-tiny", objective="fitted")
    monkeypatch.setitem(PRESETS, "fitted-tiny", like)


MODEL = {name: value for name, value in SMALL.items() if name.startswith("model.")}


def run(shards: Path, out: Path, **options: Any) -> PretrainResult:
    overrides = MODEL | options.pop("overrides", {})
    return pretrain(preset="fitted-tiny", data=shards, out=out, overrides=overrides, **options)


def test_a_fitted_run_has_the_files_of_every_run(shards: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", []
    found = run(shards, out, overrides={"epochs": "3"}, callback=lambda kind, _: seen.append(kind))
    assert found.loss is not None
    assert firth.load(out).objective == "fitted"
    values = read_run(out)
    assert values["finished"]
    assert values["job"]["objective_options"]["epochs"] == 3
    assert values["job"]["seed"] == 0
    assert [line["kind"] for line in read_metrics(out)] == [*["step"] * 3, "note", "validation"]
    assert seen.count("progress") == 3
    assert {"README.md", "loss.png", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in out.iterdir()
    }
    assert not (out / SCRATCH).exists()
    with pytest.raises(UsageError, match="finished"):
        run(shards, out, overrides={"epochs": "3"}, resume=True)


def test_an_interrupted_run_starts_again(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(FirthError, match="failed"):
        run(shards, out, overrides={"objective.fail": "true"})
    assert {path.name for path in out.iterdir()} <= {"run.json", "run.lock", "metrics.jsonl"}
    with pytest.raises(UsageError, match="resume"):
        run(shards, out)
    values = json.loads((out / "run.json").read_text())
    values["job"]["objective_options"]["fail"] = False  # as if it had been interrupted
    (out / "run.json").write_text(json.dumps(values))
    run(shards, out, resume=True)
    assert len([line for line in read_metrics(out) if line["kind"] == "note"]) == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"steps": 3}, "steps"),
        ({"tokens": 10}, "tokens"),
        ({"minutes": 0.5}, "minutes"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"teacher": "x"}, "teacher"),
        ({"overrides": {"schedule": "cosine"}}, "schedule"),
        ({"overrides": {"epochs": "many"}}, "epochs"),
        ({"objective": "causal"}, "objective"),
    ],
)
def test_options_of_the_training_loop_are_refused(
    shards: Path, tmp_path: Path, options: dict[str, Any], name: str
) -> None:
    with pytest.raises(UsageError, match=name):
        run(shards, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_its_objective_is_for_its_presets(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fitted-tiny"):
        pretrain(preset="decoder-tiny", objective="fitted", data=shards, out=tmp_path, steps=1)
