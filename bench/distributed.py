"""Distributed training: the cost of torchrun and FSDP2 on one GPU, and large models with FSDP2.

The same training step is timed in three processes: plain, under `torchrun --nproc-per-node 1`, and
also with `--parallel shard` (FSDP2). They run in turn, and the ratio of the median seconds per step
to the plain process is printed for the other two (1.00: no cost). Then GPT-2 XL and the shape of
Llama 3 8B take a few steps with FSDP2, activation checkpointing and the chunked loss; tokens/s,
MFU, peak memory and loss are printed. Weights and tokens are random, without dropout; on a GPU,
precision is bf16 over fp32 weights, and blocks are compiled (unless `--eager`) and, without FSDP2,
run as CUDA graphs. MFU counts matrix products without those of recomputed activations, relative to
one large matrix product measured in the same run.

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
from sides import machine, measure_seconds

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

AUTH_KEY = b"firth-bench"
# Environment variable of the child processes: their parent's address and what to train.
ADDRESS_VARIABLE = "FIRTH_BENCH_ADDRESS"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A model and the batch of its training step."""

    preset: str
    sequences: int
    length: int
    steps: int  # training steps per timed run
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
VARIANTS = {  # name -> whether it runs under torchrun, overrides of TrainingConfig
    "plain": (False, {}),
    "torchrun": (True, {}),
    "FSDP2": (True, {"parallel": "shard"}),
}
RATIOS = (("torchrun", "plain"), ("FSDP2", "plain"))


def main() -> None:
    """Compare the variants on the first row, then measure the other rows with FSDP2."""
    if ADDRESS_VARIABLE in os.environ:
        run_child()
        return
    options = _options()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    peak_flops = measure_peak_flops(device, dtype)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # leave the memory to the child processes
    print(f"{machine(device)}; large matrix product: {peak_flops / 1e12:.3g} TFLOP/s", flush=True)
    first, *large = options.rows
    compare_variants(first, options)
    for name in large:
        process = TrainingProcess("FSDP2", name, options)
        runs = [process.run_steps() for _ in range(4)]  # the first run is warm-up
        print_metrics(f"{name} with FSDP2", name, runs, peak_flops)
        process.close()


def compare_variants(name: str, options: argparse.Namespace) -> None:
    """Time all variants in turn; print their medians and the ratios."""
    processes = {variant: TrainingProcess(variant, name, options) for variant in VARIANTS}
    times: dict[str, list[float]] = {variant: [] for variant in processes}
    for repeat in range(1 + options.repeats):
        for variant, process in processes.items():
            seconds = process.run_steps()["seconds"]
            if repeat:  # the first run is warm-up
                times[variant].append(seconds)
    for process in processes.values():
        process.close()
    medians = {variant: statistics.median(values) for variant, values in times.items()}
    for variant, values in times.items():
        repeats = " ".join(f"{1000 * seconds:.1f}" for seconds in values)
        print(f"{name} {variant}: {1000 * medians[variant]:.1f} ms/step ({repeats})", flush=True)
    for other, baseline in RATIOS:
        print(
            f"ratio of {other} to {baseline}: {medians[other] / medians[baseline]:.3f}", flush=True
        )


def print_metrics(label: str, name: str, runs: list[dict[str, float]], peak_flops: float) -> None:
    """Print tokens/s, MFU, peak memory and loss of one process."""
    row, seconds = ROWS[name], statistics.median(run["seconds"] for run in runs[1:])
    tokens = row.sequences * row.length
    mfu = training_flops(_model_config(row), tokens, row.length, 1.0) / seconds / peak_flops
    losses = f"{runs[0]['loss']:.2f} to {runs[-1]['loss']:.2f}"
    print(
        f"{label}: {tokens / seconds:,.0f} tokens/s, MFU {mfu:.1%}, peak memory "
        f"{runs[-1]['memory'] / 2**30:.1f} GiB, {1000 * seconds:.0f} ms/step, loss {losses}",
        flush=True,
    )


class TrainingProcess:
    """A child process that trains a model; each run takes a fixed number of steps."""

    def __init__(self, variant: str, row: str, options: argparse.Namespace) -> None:
        """Start the process and wait for its connection."""
        torchrun, settings = VARIANTS[variant]
        compiled = options.device == "cuda" and not options.eager
        settings = {**settings, "compile": "true" if compiled else "false"}
        listener = Listener(("127.0.0.1", 0), authkey=AUTH_KEY)
        job = {"row": row, "settings": settings, "device": options.device, "torchrun": torchrun}
        environment = {ADDRESS_VARIABLE: json.dumps([*listener.address, job])}
        if ROWS[row].activation_checkpointing:  # large model: avoid memory fragmentation
            environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
        command = [sys.executable, *(launcher if torchrun else []), __file__]
        self.process = subprocess.Popen(command, env={**os.environ, **environment})
        self.connection: Connection = listener.accept()
        listener.close()

    def run_steps(self) -> dict[str, float]:
        """Take the steps of a run; return seconds per step, the last loss and peak memory."""
        self.connection.send("run")
        metrics: dict[str, float] = self.connection.recv()
        return metrics

    def close(self) -> None:
        """Stop the process."""
        self.connection.send("end")
        self.process.wait(timeout=60)


def run_child() -> None:
    """Build the model; for each "run" message of the parent, train and send the metrics."""
    host, port, job = json.loads(os.environ[ADDRESS_VARIABLE])
    connection = Client((host, port), authkey=AUTH_KEY)
    device = torch.device(job["device"])
    with process_group(device.type) if job["torchrun"] else nullcontext():
        train = make_training_run(ROWS[job["row"]], job["settings"], device)
        while connection.recv() == "run":
            connection.send(train())


def make_training_run(
    row: Row, settings: dict[str, Any], device: torch.device
) -> Callable[[], dict[str, float]]:
    """Build a model; return a function that takes the steps of one run and returns metrics."""
    config = TrainingConfig(
        steps=1 << 30,
        schedule="constant",
        warmup=0.0,
        activation_checkpointing=row.activation_checkpointing,
        optimizer=OptimizerConfig(learning_rate=1e-4),
        **settings,
    )
    config = resolve_auto_settings(config, 0.0, device_spec(device))
    with device:
        network = build_network(_model_config(row), ["language"])
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
    rng = np.random.default_rng(0)
    shape = row.sequences, row.length
    tokens = rng.integers(5, network.config.vocab_size, size=shape)
    keys = rng.integers(1 << 62, size=row.sequences).astype(np.uint64)
    batch = causal(PackedSequences.join(list(tokens), keys))
    planned = PlannedBatch(batch, SamplerPosition(), batch.tokens)

    def train_steps() -> None:
        """Take all steps of a run."""
        for _ in range(row.steps):
            loop.train_step(planned)
        loop.wait_for_pending()

    def run() -> dict[str, float]:
        """Take the steps; return seconds per step, the last loss and peak memory in bytes."""
        seconds = measure_seconds(train_steps, device) / row.steps
        return {"seconds": seconds, "loss": losses[-1], "memory": peak_memory(device)}

    return run


def _model_config(row: Row) -> TransformerConfig:
    """Return the row's model config without dropout."""
    config = replace(preset(row.preset).config, dropout=0.0, **row.overrides)
    assert isinstance(config, TransformerConfig)
    return replace(config, attention_dropout=0.0)


def _options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda or cpu (default: cuda if available)",
    )
    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        help=f"comma-separated, of {', '.join(ROWS)} (default: gpt2,gpt2-xl,llama3-8b); "
        "all variants run on the first",
    )
    parser.add_argument("--eager", action="store_true", help="do not use torch.compile")
    parser.add_argument(
        "--repeats", type=int, default=5, help="timed runs of each variant (default: 5)"
    )
    options = parser.parse_args()
    options.rows = options.rows or ["gpt2", "gpt2-xl", "llama3-8b"]
    return options


if __name__ == "__main__":
    start = time.monotonic()
    main()
    if ADDRESS_VARIABLE not in os.environ:
        print(f"{time.monotonic() - start:.0f} s")
