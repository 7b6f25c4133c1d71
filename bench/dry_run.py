"""`pretrain --dry-run` against real runs: memory and communication of 1, 2 and 4 processes.

Both train the same small GPT-2 on random tokens, on CPUs. The dry run predicts from one step on
fake tensors. The real processes (gloo) are measured from outside: bytes that were sent by the
counters of the loopback interface, in a network namespace of their own and with the headers of
TCP; peak memory from the events of torch's allocator.

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
from firth.models.config import LanguageModelConfig
from firth.models.networks import build_network
from firth.models.presets import preset
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

SHAPE = {"num_layers": 4, "hidden_size": 384, "ffn_size": 1536, "vocab_size": 8192}
SEQUENCES, LENGTH, STEPS = 16, 128, 5
RUN = "FIRTH_BENCH_RUN"  # environment variable of a rank: its kind of run


def main() -> None:
    if RUN in os.environ:
        run_rank(os.environ[RUN])
        return
    print("MB                    sent by a rank in a step; peak memory")
    print("processes  parallel   predicted  measured predicted   tensors allocator", flush=True)
    for ranks in (1, 2, 4):
        for parallel in ("replicate", "shard"):
            found, cost = measure(ranks, parallel), predict(ranks, parallel)
            numbers = cost.sent, found["sent"], cost.memory, found["tensors"], found["memory"]
            cells = " ".join(f"{number / 1e6:9.2f}" for number in numbers)
            print(f"{ranks:9}  {parallel:9}  {cells}", flush=True)


def predict(ranks: int, parallel: str) -> Any:
    """Return what the dry run expects."""
    run = TracedRun(
        build=lambda: TrainingModule(build_network(model_config(), ["language"])),
        config=training_config(parallel),
        batch=random_batch(),
        device=DeviceSpec(),
    )
    return trace_step(run, ranks, shards=parallel == "shard")


def measure(ranks: int, parallel: str) -> dict[str, float]:
    """Train in a network namespace; return bytes sent by a rank in a step, and its peak memory."""
    launch = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {ranks}"
    command = f"ip link set lo up && {launch} {__file__}"
    environment = {**os.environ, RUN: parallel, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [shutil.which("unshare") or "unshare", "--map-root-user", "--net", "sh", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_rank(parallel: str) -> None:
    """Measure the steps of one rank; the first one prints."""
    allocator = torch.profiler.profile(profile_memory=True, acc_events=True)
    with process_group("cpu"), allocator, LiveMemory() as tensors:
        module = TrainingModule(build_network(model_config(), ["language"]))
        log = MetricsLog(Path(tempfile.mkdtemp()) / "metrics.jsonl", 1, lambda *_: None)
        config = training_config(parallel)
        loop = TrainingLoop(module, config, lambda *_: iter(()), log, Callbacks())
        module.train()
        batch = random_batch()
        planned = PlannedBatch(batch, SamplerPosition(), batch.tokens)
        loop.train_step(planned)  # finds out what to exchange
        sent = _sent_bytes()
        for _ in range(STEPS):
            loop.train_step(planned)
        sent = (_sent_bytes() - sent) / STEPS / dist.get_world_size()
        is_main = dist.get_rank() == 0
    if is_main:
        found = {"sent": sent, "tensors": tensors.peak, "memory": _peak_memory(allocator)}
        print(json.dumps(found))


def _sent_bytes() -> int:
    """Return the bytes that all processes have sent so far, when all have come here."""
    dist.barrier()
    row = next(line for line in Path("/proc/net/dev").read_text().splitlines() if "lo:" in line)
    sent = int(row.split(":")[1].split()[8])
    dist.barrier()
    return sent


def _peak_memory(profile: Any) -> int:
    """Return the largest number of bytes that torch's allocator had given out."""
    events = profile.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return int(np.cumsum([size for _, size in sorted(changes)]).max())


def model_config() -> LanguageModelConfig:
    """Return the shape of the network."""
    config = replace(preset("gpt2").config, dropout=0.0, **SHAPE)
    return replace(config, attention_dropout=0.0)


def training_config(parallel: str) -> TrainingConfig:
    """Return the settings of both sides."""
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
    """Return the batch of a step."""
    random = np.random.default_rng(0)
    tokens = random.integers(5, SHAPE["vocab_size"], size=(SEQUENCES, LENGTH))
    keys = random.integers(1 << 62, size=SEQUENCES).astype(np.uint64)
    return causal(PackedSequences.join(list(tokens), keys))


if __name__ == "__main__":
    main()
