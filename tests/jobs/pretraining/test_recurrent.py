"""Recurrent language models through the verbs: pre-training, resuming, scoring, generation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.jobs.pretraining import PretrainResult, pretrain
from firth.training.run_directory import read_metrics
from firth.utils.errors import FirthError
from tests.jobs.finetuning.toys import sums
from tests.nightly import mostly_nightly
from tests.training.conftest import Killed, kill_at

SETTINGS = {"max_length": "32", "batch_tokens": "256", "precision": "fp32", "validate_tokens": 256}
SETTINGS |= {"validate_every": 1.0, "log_every": 1, "checkpoint_every": 2}
SIZES: dict[str, dict[str, int]] = {
    "awd-lstm": {"model.hidden_size": 16, "model.lstm_size": 24},
    "lstm-lm": {"model.hidden_size": 16},
    "bengio-2003": {"model.embedding_size": 8, "model.hidden_units": 12},
}


def small(name: str, shards: Path, out: Path, **options: Any) -> PretrainResult:
    overrides = SETTINGS | SIZES[name]
    return pretrain(preset=name, data=shards, out=out, steps=5, overrides=overrides, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_nightly(SIZES, always=("awd-lstm",)))
def test_resumed_equals_uninterrupted(name: str, shards: Path, tmp_path: Path) -> None:
    """The masks of every kind of dropout depend on the seed and the step alone."""
    whole = small(name, shards, tmp_path / "whole")
    with pytest.raises(Killed):
        small(name, shards, tmp_path / "stopped", callbacks=kill_at(3))
    again = small(name, shards, tmp_path / "stopped", resume=True)
    assert sums(again.path) == sums(whole.path) != {}


def test_the_verbs_take_a_recurrent_model(shards: Path, sample: Path, tmp_path: Path) -> None:
    run = small("awd-lstm", shards, tmp_path / "run").path
    steps = [line for line in read_metrics(run) if line["kind"] == "step"]
    assert {"causal", "activations", "changes"} <= set(steps[0])
    penalties = 2 * steps[0]["activations"] + steps[0]["changes"]
    assert steps[0]["loss"] == pytest.approx(steps[0]["causal"] + penalties, rel=1e-5)
    [validation] = [line for line in read_metrics(run) if line["kind"] == "validation"]
    assert validation["loss"] == validation["causal"]  # without penalties
    model = firth.load(run)
    found = firth.evaluate(model, task="lm", data=sample).metrics["token_perplexity"]
    assert 1 < found.value < math.inf
    assert model.generate("the", max_new_tokens=3) == model.generate("the", max_new_tokens=3)
    vectors = model.embed(["the cat", "a dog"])
    assert vectors.shape == (2, 16)
    assert np.isfinite(vectors).all()
    with pytest.raises(FirthError):
        firth.export(run, tmp_path / "hf", to="hf")
