"""Training in fp16: the loss is scaled, overflows are skipped, and a resumed run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.jobs.pretraining import PretrainResult, pretrain
from firth.training import loss_scaling
from firth.training.checkpoint import Checkpoints
from firth.training.state import TrainingState
from tests.training.conftest import SMALL, Killed, kill_at, losses, notes


def run(shards: Path, out: Path, precision: str, **options: Any) -> PretrainResult:
    overrides = SMALL | {"precision": precision, "log_every": 1, "checkpoint_every": 2}
    given = {"preset": "encoder-tiny", "steps": 6, "overrides": overrides} | options
    return pretrain(data=shards, out=out, **given)


@pytest.mark.nightly
def test_losses_equal_fp32(shards: Path, tmp_path: Path) -> None:
    for precision in ("fp32", "force-fp16"):
        run(shards, tmp_path / precision, precision)
    assert notes(tmp_path / "force-fp16") == []
    plain, scaled = losses(tmp_path / "fp32"), losses(tmp_path / "force-fp16")
    assert scaled == pytest.approx(plain, rel=2e-3)
    assert scaled != plain


def test_gradients_that_overflow_halve_the_scale(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingState, "__init__", _with_scale(2.0**36))
    run(shards, tmp_path / "run", "force-fp16", steps=36)
    found = " ".join(notes(tmp_path / "run"))
    assert "overflowed in fp16" in found
    assert "no finite gradient" not in found
    assert 0 < len(losses(tmp_path / "run")) < 36


def _with_scale(scale: float) -> Any:
    original = TrainingState.__init__

    def init(self: TrainingState, *values: Any, **named: Any) -> None:
        original(self, *values, **{"loss_scale": scale, **named})

    return init


@pytest.mark.nightly
def test_resumed_equals_uninterrupted(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_scaling, "GROWTH_INTERVAL", 3)

    run(shards, tmp_path / "whole", "force-fp16")
    with pytest.raises(Killed):
        run(shards, tmp_path / "stopped", "force-fp16", callbacks=kill_at(5))
    found = Checkpoints(tmp_path / "stopped/checkpoints").newest()
    assert found is not None
    assert (found.state["loss_scale"], found.state["scaled_steps"]) == (2.0**17, 4)
    run(shards, tmp_path / "stopped", "force-fp16", resume=True)
    weights = [
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")
    ]
    assert weights[0] == weights[1]
