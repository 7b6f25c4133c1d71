"""Device-dependent config of a run: precision, compilation, CUDA graphs; and peak memory."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from firth.models.cuda_graphs import CudaGraphRunner
from firth.models.stack import Stack
from firth.objectives.batch import Batch
from firth.training.config import TrainingConfig
from firth.utils.devices import DeviceSpec, has_triton, resolve_precision

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

LONG_SECONDS = 60.0  # runs on a GPU in which 25 s of compilation pay off
# FLOP/s of a training step in half precision, roughly, by the first number of the compute
# capability; newer GPUs count as the last row.
TRAINING_FLOPS = {7: 3e13, 8: 8e13, 9: 3e14}  # T4, V100; A10, A100; H100, H200

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

Config = TypeVar("Config", bound=TrainingConfig)


def resolve_auto_settings(config: Config, flops: float, device: DeviceSpec) -> Config:
    """Replace `auto` by the best value for the device and a run's training FLOPs (0: unknown).

    Half precision where it is natively supported; torch.compile for long runs on a GPU; CUDA graphs
    on every GPU.
    """
    config = replace(config, precision=resolve_precision(config.precision, device))
    if config.compile == "auto":
        pays = has_triton(device) and expected_seconds(config, flops, device) >= LONG_SECONDS
        config = replace(config, compile="true" if pays else "false")
    if config.cuda_graphs == "auto":
        config = replace(config, cuda_graphs="true" if device.type == "cuda" else "false")
    return config


def expected_seconds(config: TrainingConfig, flops: float, device: DeviceSpec) -> float:
    """Estimate the time of a run on a GPU from its budget in minutes or its training FLOPs.

    >>> from firth.utils.devices import H100
    >>> expected_seconds(TrainingConfig(steps=10), 6e15, H100)
    20.0
    """
    generation = min(max(device.compute_capability[0], min(TRAINING_FLOPS)), max(TRAINING_FLOPS))
    return 60 * config.minutes or flops / TRAINING_FLOPS[generation]


def autocast(config: TrainingConfig, device: torch.device) -> Any:
    """Return a context in which matrix products are computed in the configured precision."""
    dtype = HALF.get(config.precision)
    return torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)


def apply_runtime_options(network: nn.Module, config: TrainingConfig) -> None:
    """Enable activation checkpointing, compilation and CUDA graphs in the blocks of a network."""
    for stack in _stacks(network):
        stack.checkpointing = config.activation_checkpointing
        if config.compile == "true":
            # FSDP2 hands the sizes of layers to the compiler as inputs: with dynamic shapes,
            # kernels would be for any hidden size.
            stack.compile_blocks(dynamic=None if config.parallel == "shard" else True)
        if config.cuda_graphs == "true":
            stack.graph_runner = CudaGraphRunner()


class Compilations:
    """Tells in which steps the blocks are compiled: the first with each kind of batch.

    Blocks of sharded weights are compiled once more, when a second number of tokens occurs.
    """

    def __init__(self, config: TrainingConfig) -> None:
        each = 2 if config.parallel == "shard" else 1
        self._each = each if config.compile == "true" else 0
        self._done: dict[bool, set[int]] = {True: set(), False: set()}  # tokens of a batch

    def is_due(self, batch: Batch) -> bool:
        """Tell whether the step of a batch compiles blocks, and note that it has."""
        done = self._done[bool(batch.prefix.any())]  # bidirectional, or causal
        due = len(done) < self._each and batch.tokens not in done
        if due:
            done.add(batch.tokens)
        return due


def stop_graph_capture(network: nn.Module) -> bool:
    """Free all captured CUDA graphs and capture no more; return whether there were any."""
    runners = [stack.graph_runner for stack in _stacks(network)]
    freed = [runner.stop() for runner in runners if runner is not None]
    return any(freed)


def remove_graphs(network: nn.Module) -> str:
    """Undo CUDA graph capture; return why it failed, or an empty string if it did not."""
    error = ""
    for stack in _stacks(network):
        error = error or (stack.graph_runner.error if stack.graph_runner is not None else "")
        stack.graph_runner = None
    return error


def _stacks(network: nn.Module) -> list[Stack]:
    return [module for module in network.modules() if isinstance(module, Stack)]


def reset_peak_memory(device: torch.device) -> None:
    """Make `peak_memory` measure from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Return the largest number of bytes allocated so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # ru_maxrss includes the parent process's memory
    if status.is_file() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, else kilobytes
