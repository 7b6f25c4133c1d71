"""Check the predictions of `pretrain --dry-run` against real runs with 1, 2 and 4 processes.

Both train the same small GPT-2 on random tokens on CPUs, replicated and sharded. The dry run
predicts the bytes sent per rank and step and the peak memory from one step on fake tensors. The
real processes (gloo) are measured from outside: sent bytes by the counters of the loopback
interface, in a network namespace of their own and with TCP headers; peak memory as that of the live
tensors and from the events of torch's allocator. One row per run shows both, in MB.

    python bench/dry_run.py            # Linux with `unshare` and `ip`, about two minutes
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from firth.data.packing import PackedSequences
from firth.data.sampler import SamplerPosition
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.models.transformer_config import TransformerConfig
from firth.objectives.batch import Batch
from firth.objectives.causal import causal
from firth.training.config import TrainingConfig
from firth.training.distributed.live_memory import LiveMemory
from firth.training.distributed.process_group import process_group
from firth.training.distributed.traced_step import TracedRun, trace_step
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.optim import OptimizerConfig
from firth.training.state import PlannedBatch
from firth.utils.devices import DeviceSpec

SHAPE: dict[str, Any] = {"num_layers": 4, "hidden_size": 384, "ffn_size": 1536, "vocab_size": 8192}
BATCH_SIZE, MAX_LENGTH, STEPS = 16, 128, 5
RUN_VARIABLE = "FIRTH_BENCH_RUN"  # environment variable of the ranks: the value of --parallel


def main() -> None:
    """Predict and measure each combination, or run one rank."""
    if RUN_VARIABLE in os.environ:
        run_rank(os.environ[RUN_VARIABLE])
        return
    print("MB                    sent per rank and step   peak memory")
    print("processes  parallel   predicted  measured predicted   tensors allocator", flush=True)
    for ranks in (1, 2, 4):
        for parallel in ("replicate", "shard"):
            measured, predicted = measure(ranks, parallel), predict(ranks, parallel)
            values = (
                predicted.sent,
                measured["sent"],
                predicted.memory,
                measured["tensors"],
                measured["memory"],
            )
            cells = " ".join(f"{value / 1e6:9.2f}" for value in values)
            print(f"{ranks:9}  {parallel:9}  {cells}", flush=True)


def predict(ranks: int, parallel: str) -> Any:
    """Return the cost of a training step predicted by the dry run."""
    run = TracedRun(
        build=lambda: TrainingModule(build_network(model_config(), ["language"])),
        config=training_config(parallel),
        batch=random_batch(),
        device=DeviceSpec(),
    )
    return trace_step(run, ranks, shards=parallel == "shard")


def measure(ranks: int, parallel: str) -> dict[str, float]:
    """Train in a network namespace; return the bytes sent per rank and step and the peak memory."""
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {ranks}"
    command = f"ip link set lo up && {torchrun} {__file__}"
    environment = {**os.environ, RUN_VARIABLE: parallel, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [shutil.which("unshare") or "unshare", "--map-root-user", "--net", "sh", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return measured


def run_rank(parallel: str) -> None:
    """Train on one rank and measure; rank 0 prints the results as JSON."""
    allocator = torch.profiler.profile(profile_memory=True, acc_events=True)
    with process_group("cpu"), allocator, LiveMemory() as tensors:
        module = TrainingModule(build_network(model_config(), ["language"]))
        log = MetricsLog(Path(tempfile.mkdtemp()) / "metrics.jsonl", 1, lambda *_: None)
        config = training_config(parallel)
        loop = TrainingLoop(module, config, lambda *_: iter(()), log, Callbacks())
        module.train()
        batch = random_batch()
        planned = PlannedBatch(batch, SamplerPosition(), batch.tokens)
        loop.train_step(planned)  # the first step sets up the communication
        sent_before = _sent_bytes()
        for _ in range(STEPS):
            loop.train_step(planned)
        sent = (_sent_bytes() - sent_before) / STEPS / dist.get_world_size()
        is_main = dist.get_rank() == 0
    if is_main:
        measured = {"sent": sent, "tensors": tensors.peak, "memory": _peak_memory(allocator)}
        print(json.dumps(measured))


def _sent_bytes() -> int:
    """Return the bytes that all ranks have sent so far; all ranks wait for each other."""
    dist.barrier()
    row = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    sent = int(row.split(":")[1].split()[8])
    dist.barrier()
    return sent


def _peak_memory(profile: Any) -> int:
    """Return the peak of the bytes allocated by torch's allocator."""
    events = profile.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return int(np.cumsum([size for _, size in sorted(changes)]).max())


def model_config() -> TransformerConfig:
    """Return the model's config."""
    config = replace(preset("gpt2").config, dropout=0.0, **SHAPE)
    assert isinstance(config, TransformerConfig)
    return replace(config, attention_dropout=0.0)


def training_config(parallel: str) -> TrainingConfig:
    """Return the training settings of the dry run and the real runs."""
    return TrainingConfig(
        steps=1 << 30,
        schedule="constant",
        warmup=0.0,
        precision="fp32",
        compile="false",
        cuda_graphs="false",
        parallel=parallel,
        optimizer=OptimizerConfig(learning_rate=1e-4),
    )


def random_batch() -> Batch:
    """Return a batch of random tokens."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, SHAPE["vocab_size"], size=(BATCH_SIZE, MAX_LENGTH))
    keys = rng.integers(1 << 62, size=BATCH_SIZE).astype(np.uint64)
    return causal(PackedSequences.join(list(tokens), keys))


if __name__ == "__main__":
    main()
