"""What benches share: turns taken by two sides, a clock that waits for a GPU, settings."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long a piece of work takes."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def in_turns(
    sides: Mapping[str, Callable[[], object]], device: torch.device, *, warm: int, repeats: int
) -> dict[str, float]:
    """The median seconds of each side, after some rounds that do not count; one after the other."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(warm + repeats):
        for name, work in sides.items():
            took = seconds(work, device)
            if round_ >= warm:
                times[name].append(took)
    return {name: statistics.median(found) for name, found in times.items()}


def machine(device: torch.device) -> str:
    """Where and with what a bench runs."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def with_changes(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, and what --set changes in a recipe."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    options = parser.parse_args()
    options.overrides = dict(change.split("=", 1) for change in options.overrides)
    return options
