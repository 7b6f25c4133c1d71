"""Dry runs: the parameters, memory and steps of a real run; nothing is trained or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import firth
from firth.jobs import dry_run, parent_models
from firth.jobs.dry_run import DryRunResult, StrategyCost
from firth.jobs.finetuning import finetune
from firth.training.loop import TrainingLoop
from firth.utils.errors import FirthError, UsageError
from tests.conftest import Result
from tests.jobs.finetuning.toys import TINY, coloured
from tests.nightly import mostly_nightly


@pytest.fixture
def estimate(models: dict[str, Path], tmp_path: Path) -> Callable[..., DryRunResult]:
    """The dry run of a tiny encoder on a classification task."""
    train, dev = coloured(tmp_path)

    def run(strategy: str = "", **options: Any) -> DryRunResult:
        given = {"model": models["encoder"], "task": "classify", "train": train, "dev": dev}
        given |= {"overrides": TINY, "strategy": strategy, "dry_run": True, **options}
        return finetune(**given)

    return run


def test_the_counts_are_those_of_the_run(
    estimate: Callable[..., DryRunResult], tmp_path: Path
) -> None:
    options = {"out": tmp_path / "run", "epochs": 0.25, "limit": 32}
    before = torch.random.get_rng_state()
    found = estimate("probe lora:4", **options)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not (tmp_path / "run").exists()
    for row in found.rows:
        real = estimate(row.strategy, **options | {"out": tmp_path / row.strategy}, dry_run=False)
        check_counts(row, real.values())
        assert found.examples == real.examples[0]


def check_counts(row: StrategyCost, real: dict[str, Any]) -> None:
    names = ("strategy", "parameters", "trainable_parameters", "trainable_fraction", "steps")
    assert {name: row.values()[name] for name in names} == {name: real[name] for name in names}


def test_lora_trains_rank_times_inputs_plus_outputs_of_each_matrix(
    estimate: Callable[..., DryRunResult],
) -> None:
    # Two blocks with four matrices: query, key and value in one, output, up and gate, down.
    per_rank = 2 * ((32 + 3 * 32) + (32 + 32) + (32 + 2 * 48) + (48 + 32))
    small, large = estimate("lora:2 lora:5").rows
    assert large.trainable_parameters - small.trainable_parameters == 3 * per_rank
    added = large.parameters - estimate("full").rows[0].parameters
    assert added == 5 * per_rank


def test_memory(estimate: Callable[..., DryRunResult]) -> None:
    found = estimate("full lora")
    full, lora = found.rows
    assert not found.memory_is_measured
    assert full.gradients == 4 * full.trainable_parameters  # fp32
    assert full.optimizer == 2 * full.gradients  # AdamW's two moments
    assert lora.gradients == 4 * lora.trainable_parameters
    assert full.activations is not None
    assert full.memory == full.weights + full.gradients + full.optimizer + full.activations
    (half,) = estimate("full", overrides=TINY | {"batch_size": 8}).rows
    assert half.activations is not None
    assert 1.8 < full.activations / half.activations < 2.2  # all texts are equally long
    (muon,) = estimate("full", overrides=TINY | {"optimizer": "muon"}).rows
    assert muon.optimizer < full.optimizer  # one moment of each matrix


@pytest.mark.parametrize("budget", [{"tokens": 2000}, {"minutes": 1}])
def test_the_steps_of_other_budgets_are_estimated(
    estimate: Callable[..., DryRunResult], budget: dict[str, Any]
) -> None:
    (row,) = estimate("lora", overrides=TINY | budget).rows
    assert row.steps > 1
    if "tokens" in budget:
        assert row.steps in (15, 16)  # 16 texts of 6 words, CLS and SEP in a step


@pytest.mark.parametrize("when", mostly_nightly(["before", "during"], always=["during"]))
def test_a_run_that_does_not_fit_into_memory(
    estimate: Callable[..., DryRunResult], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def fail(loop: TrainingLoop, batch: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")

    if when == "before":
        monkeypatch.setattr(dry_run, "available_memory", lambda device: 20_000)
    else:
        monkeypatch.setattr(TrainingLoop, "train_step", fail)
    full, probe = estimate("full probe").rows
    assert full.trainable_parameters > 0
    assert (full.activations, full.seconds) == (None, None)
    assert probe.seconds is not None
    (note,) = [note for note in estimate("full").notes if note.startswith("full: ")]
    assert "does not fit" in note
    assert "lora" in note


def test_a_model_that_does_not_fit_is_not_loaded(
    estimate: Callable[..., DryRunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_models, "available_memory", lambda device: 1000)
    monkeypatch.setattr(parent_models, "load", lambda *args, **options: pytest.fail("loaded"))
    with pytest.raises(FirthError, match="does not fit into memory"):
        estimate("full")


def test_at_the_command_line(
    models: dict[str, Path], firth_here: Callable[..., Result], tmp_path: Path
) -> None:
    train, dev = coloured(tmp_path, counts=(8, 4))
    words = ["finetune", models["encoder"], "--task", "classify", "--train", train, "--dev", dev]
    before = sorted(tmp_path.iterdir())
    shown = firth_here(*words, "--dry-run", "--strategy", "lora prefix")
    assert all(name in shown.stdout for name in ("lora", "prefix", "estimated"))
    found = firth_here(*words, "--dry-run", "--strategy", "lora", "--json").json
    assert found["dry_run"] is True
    assert f"{found['strategies'][0]['trainable_parameters']:,}" in shown.stdout
    assert sorted(tmp_path.iterdir()) == before
    for wrong in (["--dry-run", "--seeds", "2"], ["--dry-run", "--search"], []):
        refused = firth_here(*words, *wrong)
        assert refused.returncode == 2
        assert ("--dry-run" if wrong else "--out") in refused.error
    with pytest.raises(UsageError, match="out"):
        firth.finetune(models["encoder"], task="classify", train=train)
