"""`pretrain --dry-run`: memory and exchanges of a rank, against hand calculations and real runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from firth.data.packing import PackedSequences
from firth.jobs.pretraining import pretrain
from firth.model import Model
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.models.transformer import count_parameters
from firth.objectives.causal import causal
from firth.training.accumulation import GradientAccumulator
from firth.training.config import TrainingConfig
from firth.training.distributed import collectives, fully_sharded
from firth.training.distributed.parallelism import Parallelism
from firth.training.distributed.traced_step import TracedRun, trace_step
from firth.training.losses import TrainingModule
from firth.training.state import TrainingState
from firth.utils.devices import H100, DeviceSpec
from firth.utils.errors import FirthError, UsageError
from tests.conftest import Result
from tests.training.conftest import SMALL

TINY = {"num_layers": 2, "hidden_size": 48, "ffn_size": 96, "vocab_size": 96, "max_positions": 64}
LOSS_SUMS = 2 * 8  # the loss and the number of correct predictions, in float64
NORM, MICRO_BATCHES = 4, 8  # the gradient norm in float32; agreed number of micro-batches, float64


def network(name: str, attention_dropout: float = 0.0, **overrides: Any) -> TrainingModule:
    config = replace(preset(name).config, dropout=0.0, **overrides)
    config = replace(config, attention_dropout=attention_dropout)
    return TrainingModule(build_network(config, ["language"]))


def run(sequences: int = 8, length: int = 32, **options: Any) -> TracedRun:
    """Describe a run of a tiny network on a CPU."""
    tokens = np.random.default_rng(0).integers(5, 96, size=(sequences, length))
    keys = np.arange(sequences, dtype=np.uint64)
    return TracedRun(
        build=lambda: network("gpt2", **TINY),
        config=TrainingConfig(steps=1, **options),
        batch=causal(PackedSequences.join(list(tokens), keys)),
        device=DeviceSpec(),
    )


WEIGHTS = 4 * count_parameters(network("gpt2", **TINY))  # bytes


def test_replicated_weights_send_gradients_and_updates_once() -> None:
    cost = trace_step(run(precision="fp32", micro_batch_tokens=32), ranks=4, shards=False)
    assert cost.micro_batches == 2
    assert cost.payload == {"all-reduce": WEIGHTS + LOSS_SUMS, "broadcast": WEIGHTS}
    assert cost.sent == (2 * (WEIGHTS + LOSS_SUMS) + WEIGHTS) * 3 // 4  # rings
    assert cost.weights == WEIGHTS
    assert not dist.is_initialized()


def test_sharded_weights_are_gathered_in_each_micro_batch() -> None:
    cost = trace_step(run(20, precision="fp32", micro_batch_tokens=32), ranks=4, shards=True)
    assert cost.micro_batches == 5  # two are traced
    assert cost.collectives["all-gather"] == 2 * 5  # the blocks; all else
    assert cost.payload == {
        "all-gather": 5 * WEIGHTS,
        "reduce-scatter": WEIGHTS,
        "all-reduce": LOSS_SUMS + NORM + MICRO_BATCHES,
    }
    assert cost.weights == WEIGHTS // 4  # all sizes are multiples of 4
    assert WEIGHTS // 2 <= cost.optimizer < WEIGHTS // 2 + 1000  # two moments, and step counts


def test_half_precision_on_a_gpu_halves_what_is_gathered() -> None:
    cost = trace_step(replace(run(precision="bf16"), device=H100), ranks=4, shards=True)
    assert cost.payload["all-gather"] == WEIGHTS // 2
    assert cost.payload["reduce-scatter"] == WEIGHTS  # gradients are summed in float32


def test_one_rank_sends_nothing_and_has_the_memory_of_a_real_step() -> None:
    """Torch's allocator also counts temporary memory inside of operations."""
    traced = run(sequences=32, precision="fp32")
    cost = trace_step(traced, ranks=1, shards=False)
    assert cost.sent == 0
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        module = traced.build()
        parallel = Parallelism(module, traced.config)
        accumulator = GradientAccumulator(module, traced.config, parallel, lambda step, batch: None)
        accumulator.accumulate(traced.batch, TrainingState())
        parallel.optimizer.clip_gradients()
        parallel.optimizer.step(1.0)
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    sizes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    measured = np.cumsum([size for _, size in sizes]).max()
    assert 0.85 * measured < cost.memory <= 1.01 * measured


def test_an_exchange_whose_bytes_are_not_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(collectives.COLLECTIVES, "c10d::broadcast_")
    with pytest.raises(FirthError, match="broadcast_"):
        trace_step(run(), ranks=2, shards=False)


def test_a_batch_with_fewer_sequences_than_ranks_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"2 sequences.*64 ranks.*batch_tokens"):
        trace_step(run(sequences=2, precision="fp32"), ranks=64, shards=False)
    assert not dist.is_initialized()


def test_text_must_be_prepared_first(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A text.")
    with pytest.raises(UsageError, match="prepare"):
        pretrain(
            preset="bert-tiny",
            data=tmp_path / "text.txt",
            tokenizer="stories-encoder",
            steps=1,
            dry_run=True,
        )


def test_a_model_in_memory_is_not_written(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = Model(build_network(replace(preset("gpt2").config, **TINY), ["language"]), None)
    with pytest.raises(UsageError, match="source"):
        pretrain(data=shards, source=model, steps=1, dry_run=True, device="cpu")
    assert not list(tmp_path.iterdir())


def test_the_command_prints_a_table_and_json(
    shards: Path, firth_here: Callable[..., Result]
) -> None:
    words = ["pretrain", "--preset", "gpt2", "--data", str(shards), "--steps", "9", "--dry-run"]
    for name, value in {**SMALL, "model.num_layers": 2, "model.max_positions": 64}.items():
        words += ["--set", f"{name}={value}"]
    shown = firth_here(*words, "--world-size", "2", "--device", "cuda", "--parallel", "replicate")
    for part in ("2 ranks", "peak memory", "sent per step", "all-reduce", "fp32, on GPUs"):
        assert part in shown.stdout
    found = firth_here(*words, "--world-size", "2", "--device", "cpu", "--json").json
    assert [row["parallel"] for row in found["ranks"]] == ["replicate", "shard"]
    assert found["world_size"] == 2
    for row in found["ranks"]:
        parts = ("weights", "gradients", "optimizer", "activations")
        assert row["memory"] == sum(row[part] for part in parts) > row["weights"] > 0
        assert row["sent"] > 0
    refused = firth_here("pretrain", "--data", str(shards), "--out", "run", "--world-size", "2")
    assert refused.returncode == 2
    assert "--dry-run" in refused.error


def test_sharded_weights_are_on_the_device_of_the_process_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--device cpu on a machine with a GPU."""

    def stop(kind: str, shape: tuple[int, ...]) -> None:
        raise ValueError(kind)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(fully_sharded, "init_device_mesh", stop)
    with pytest.raises(ValueError, match=r"^cpu$"):
        trace_step(run(precision="fp32"), ranks=2, shards=True)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "shape", "gigabytes"), [("gpt2-xl", (8, 1024), 23.9), ("llama3-8b", (1, 2048), 123.6)]
)
def test_the_memory_is_that_measured_on_a_gpu(
    name: str, shape: tuple[int, int], gigabytes: float
) -> None:
    """Peak memory on an H200 with FSDP2 and activation checkpointing (docs/scaling.md)."""
    options = run(*shape, precision="bf16", activation_checkpointing=True)
    options = replace(options, build=lambda: network(name), device=H100)
    assert trace_step(options, ranks=1, shards=True).memory / 2**30 == pytest.approx(
        gigabytes, rel=0.01
    )


@pytest.mark.nightly
@pytest.mark.parametrize("parallel", ["replicate", "shard"])
def test_two_processes_exchange_what_was_predicted(
    shards: Path, tmp_path: Path, parallel: str
) -> None:
    options = {
        "preset": "bert-tiny",
        "data": str(shards),
        "steps": 6,
        "device": "cpu",
        "parallel": parallel,
        "overrides": {**SMALL, "validate_every": 1.0},
    }
    (cost,) = pretrain(**options, dry_run=True, world_size=2).rows
    options["out"] = str(tmp_path / "run")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, str(Path(__file__).with_name("counted_run.py")), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    measured["all-reduce"] -= 4 * 8  # time, signals and micro-batch size, which the loop agrees on
    assert measured == cost.payload


@pytest.mark.nightly
def test_electra_is_followed_and_networks_that_need_values_are_refused(shards: Path) -> None:
    options = {"data": shards, "steps": 6, "device": "cuda", "dry_run": True, "world_size": 2}
    small = {**SMALL, "model.num_layers": 2, "model.embedding_size": 16}
    rows = pretrain(**options, preset="electra-small", overrides=small).rows
    assert all(row.collectives["all-reduce"] >= 2 for row in rows)
    with pytest.raises(UsageError, match=r"elmo.*no values"):
        pretrain(**options, preset="elmo", overrides={"max_length": "32", "batch_tokens": "256"})


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_attention_dropout_needs_no_memory_on_a_gpu(precision: str) -> None:
    """Its fused kernels draw the masks again in the backward pass; a CPU stores them."""
    options = run(8, 64, precision=precision)
    memory = {}
    a100 = replace(H100, compute_capability=(8, 0))  # one kernel with dropout and without
    for device in (a100, DeviceSpec()):
        for dropout in (0.0, 0.1):
            build = partial(network, "gpt2", dropout, **TINY)
            traced = replace(options, build=build, device=device)
            memory[device.type, dropout] = trace_step(traced, ranks=1, shards=False).memory
    assert memory["cuda", 0.1] == pytest.approx(memory["cuda", 0.0], rel=0.001)
    assert memory["cpu", 0.1] > 1.1 * memory["cpu", 0.0]
