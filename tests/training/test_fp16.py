"""Training in fp16: the loss is scaled, overflows are skipped, and a resumed run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.jobs.pretraining import PretrainResult, pretrain
from firth.objectives.batch import Batch
from firth.training import loss_scaling
from firth.training.checkpoint import Checkpoints
from firth.training.loop import Callbacks
from firth.training.run_directory import read_metrics
from firth.training.state import TrainingState
from tests.training.conftest import SMALL


def run(shards: Path, out: Path, precision: str, **options: Any) -> PretrainResult:
    overrides = SMALL | {"precision": precision, "log_every": 1, "checkpoint_every": 2}
    given = {"preset": "encoder-tiny", "steps": 6, "overrides": overrides} | options
    return pretrain(data=shards, out=out, **given)


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out) if line["kind"] == "step"]


def notes(out: Path) -> str:
    return "\n".join(line["note"] for line in read_metrics(out) if line["kind"] == "note")


def test_losses_are_those_of_fp32(shards: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "force-fp16"):
        run(shards, tmp_path / precision, precision)
    assert "overflowed" not in notes(tmp_path / "force-fp16")
    plain, scaled = losses(tmp_path / "fp32"), losses(tmp_path / "force-fp16")
    assert scaled == pytest.approx(plain, rel=2e-3)
    assert scaled != plain


def test_gradients_that_overflow_halve_the_scale(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingState, "__init__", _with_scale(2.0**60))
    run(shards, tmp_path / "run", "force-fp16", steps=60)
    assert "overflowed in fp16 and was skipped" in notes(tmp_path / "run")
    assert "no finite gradient" not in notes(tmp_path / "run")
    assert 0 < len(losses(tmp_path / "run")) < 60


def _with_scale(scale: float) -> Any:
    original = TrainingState.__init__

    def init(self: TrainingState, *values: Any, **named: Any) -> None:
        original(self, *values, **{"loss_scale": scale, **named})

    return init


class Killed(Exception):
    pass


def test_a_resumed_run_ends_with_the_same_bits(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scaling, "GROWTH_INTERVAL", 3)

    def kill(step: int, part: Batch) -> None:
        if step == 5:
            raise Killed

    run(shards, tmp_path / "whole", "force-fp16")
    with pytest.raises(Killed):
        run(
            shards, tmp_path / "stopped", "force-fp16", callbacks=Callbacks(before_micro_batch=kill)
        )
    found = Checkpoints(tmp_path / "stopped/checkpoints").newest()
    assert found is not None
    assert (found.state["loss_scale"], found.state["scaled_steps"]) == (2.0**17, 4)
    run(shards, tmp_path / "stopped", "force-fp16", resume=True)
    weights = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")
    ]
    assert weights[0] == weights[1]
