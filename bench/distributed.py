"""Several processes: what torchrun and FSDP2 cost on one GPU, and the largest shapes that train.

The first ratio is a step under `torchrun --nproc-per-node 1` against the same step without it, the
second one with `--parallel shard` (FSDP2) against the same. Each side is a process of its own; they
take turns, and the median of the turns counts. Then GPT-2 XL and the shape of Llama 3 8B take a few
steps with FSDP2, activation checkpointing and the chunked loss. Weights are random, tokens too;
bf16 over fp32 weights, no dropout; blocks are compiled on a GPU (`--eager`: not), and run as CUDA
graphs without FSDP2. MFU counts the products of matrices, not those of recomputed activations.

    python bench/distributed.py                       # one GPU, about four minutes
    python bench/distributed.py --device cpu --rows small
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sides import machine, seconds

from firth.data.packing import PackedSequences
from firth.data.sampler import SamplerPosition
from firth.models.flops import measure_peak_flops, training_flops
from firth.models.networks import build_network
from firth.models.presets import preset
from firth.models.transformer_config import TransformerConfig
from firth.objectives.causal import causal
from firth.training.config import TrainingConfig
from firth.training.distributed.process_group import process_group
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.optim import OptimizerConfig
from firth.training.runtime import peak_memory, resolve_auto_settings
from firth.training.state import PlannedBatch
from firth.utils.devices import device_spec

KEY = b"firth-bench"
ADDRESS = "FIRTH_BENCH_ADDRESS"  # environment variable of a side: where its parent listens


@dataclass(frozen=True, kw_only=True)
class Row:
    """A shape, and the batch of a step."""

    preset: str
    sequences: int
    length: int
    steps: int  # of one turn
    overrides: dict[str, Any] = field(default_factory=dict)
    activation_checkpointing: bool = False


ROWS = {
    "gpt2": Row(preset="gpt2", sequences=64, length=1024, steps=10),
    "gpt2-32": Row(preset="gpt2", sequences=32, length=1024, steps=20),
    "gpt2-16": Row(preset="gpt2", sequences=16, length=1024, steps=20),
    "gpt2-xl": Row(
        preset="gpt2-xl", sequences=8, length=1024, steps=4, activation_checkpointing=True
    ),
    "llama3-8b": Row(
        preset="llama3-8b", sequences=1, length=2048, steps=4, activation_checkpointing=True
    ),
    "small": Row(
        preset="gpt2",
        sequences=4,
        length=64,
        steps=2,
        overrides={"num_layers": 2, "hidden_size": 768, "ffn_size": 128, "vocab_size": 600},
    ),
}
SIDES = {  # name -> under torchrun, and settings
    "plain": (False, {}),
    "torchrun": (True, {}),
    "FSDP2": (True, {"parallel": "shard"}),
}
RATIOS = (("torchrun", "plain"), ("FSDP2", "plain"))


def main() -> None:
    if ADDRESS in os.environ:
        run_side()
        return
    options = _options()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    peak = measure_peak_flops(device, dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for the sides
    print(f"{machine(device)}; a large product: {peak / 1e12:.3g} TFLOP/s", flush=True)
    first, *large = options.rows
    compare(first, options)
    for name in large:
        side = Side("FSDP2", name, options)
        turns = [side.turn() for _ in range(4)]  # the first one is warm-up
        report(f"{name} with FSDP2", name, turns, peak)
        side.close()


def compare(name: str, options: argparse.Namespace) -> None:
    """Let all sides take turns; print the ratio of the medians."""
    sides = {side: Side(side, name, options) for side in SIDES}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(1 + options.repeats):
        for label, side in sides.items():
            took = side.turn()["seconds"]
            if turn:  # the first one is warm-up
                times[label].append(took)
    for side in sides.values():
        side.close()
    medians = {label: statistics.median(found) for label, found in times.items()}
    for label, found in times.items():
        turns = " ".join(f"{1000 * took:.1f}" for took in found)
        print(f"{name} {label}: {1000 * medians[label]:.1f} ms a step ({turns})", flush=True)
    for one, other in RATIOS:
        print(f"ratio of {one} to {other}: {medians[one] / medians[other]:.3f}", flush=True)


def report(label: str, name: str, turns: list[dict[str, float]], peak: float) -> None:
    """Print tokens a second, MFU and peak memory of one side."""
    row, took = ROWS[name], statistics.median(turn["seconds"] for turn in turns[1:])
    tokens = row.sequences * row.length
    mfu = training_flops(_config(row), tokens, row.length, 1.0) / took / peak
    losses = f"{turns[0]['loss']:.2f} to {turns[-1]['loss']:.2f}"
    print(
        f"{label}: {tokens / took:,.0f} tokens/s, MFU {mfu:.1%}, peak memory "
        f"{turns[-1]['memory'] / 2**30:.1f} GiB, {1000 * took:.0f} ms a step, loss {losses}",
        flush=True,
    )


class Side:
    """A process that trains; each turn is some steps."""

    def __init__(self, side: str, row: str, options: argparse.Namespace) -> None:
        torchrun, settings = SIDES[side]
        compiles = options.device == "cuda" and not options.eager
        settings = {**settings, "compile": "true" if compiles else "false"}
        listener = Listener(("127.0.0.1", 0), authkey=KEY)
        job = {"row": row, "settings": settings, "device": options.device, "torchrun": torchrun}
        place = {ADDRESS: json.dumps([*listener.address, job])}
        if ROWS[row].activation_checkpointing:  # large: avoid fragmented memory
            place["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        command = [sys.executable, *(launch if torchrun else []), __file__]
        self.process = subprocess.Popen(command, env={**os.environ, **place})
        self.connection: Connection = listener.accept()
        listener.close()

    def turn(self) -> dict[str, float]:
        """Take the steps of a turn; return seconds per step, the last loss and peak memory."""
        self.connection.send("turn")
        found: dict[str, float] = self.connection.recv()
        return found

    def close(self) -> None:
        """End the process."""
        self.connection.send("end")
        self.process.wait(timeout=60)


def run_side() -> None:
    """Build the network and take turns until the parent ends them."""
    host, port, job = json.loads(os.environ[ADDRESS])
    connection = Client((host, port), authkey=KEY)
    device = torch.device(job["device"])
    with process_group(device.type) if job["torchrun"] else nullcontext():
        work = training(ROWS[job["row"]], job["settings"], device)
        while connection.recv() == "turn":
            connection.send(work())


def training(
    row: Row, settings: dict[str, Any], device: torch.device
) -> Callable[[], dict[str, float]]:
    """Return a function that takes the steps of one turn."""
    config = TrainingConfig(
        steps=1 << 30,
        schedule="constant",
        warmup=0.0,
        activation_checkpointing=row.activation_checkpointing,
        optimizer=OptimizerConfig(learning_rate=1e-4),
        **settings,
    )
    config = resolve_auto_settings(config, device_spec(device))
    with device:
        network = build_network(_config(row), ["language"])
        for parameter in network.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.02)
    module, losses = TrainingModule(network), [0.0]
    log = MetricsLog(
        Path(tempfile.mkdtemp(prefix="firth-bench-")) / "metrics.jsonl",
        1,
        lambda kind, metrics: losses.append(metrics.get("loss", losses[-1])),
    )
    loop = TrainingLoop(module, config, lambda *_: iter(()), log, Callbacks())
    module.train()
    random = np.random.default_rng(0)
    shape = row.sequences, row.length
    tokens = random.integers(5, network.config.vocab_size, size=shape)
    keys = random.integers(1 << 62, size=row.sequences).astype(np.uint64)
    batch = causal(PackedSequences.join(list(tokens), keys))
    planned = PlannedBatch(batch, SamplerPosition(), batch.tokens)

    def steps() -> None:
        for _ in range(row.steps):
            loop.train_step(planned)
        loop.wait_for_pending()

    def turn() -> dict[str, float]:
        took = seconds(steps, device) / row.steps
        return {"seconds": took, "loss": losses[-1], "memory": peak_memory(device)}

    return turn


def _config(row: Row) -> TransformerConfig:
    config = replace(preset(row.preset).config, dropout=0.0, **row.overrides)
    assert isinstance(config, TransformerConfig)
    return replace(config, attention_dropout=0.0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=lambda text: text.split(","), help=",".join(ROWS))
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    options.rows = options.rows or ["gpt2", "gpt2-xl", "llama3-8b"]
    return options


if __name__ == "__main__":
    began = time.monotonic()
    main()
    if ADDRESS not in os.environ:
        print(f"{time.monotonic() - began:.0f} s")
