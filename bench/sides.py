"""Timing and options that the benchmarks share.

The functions of a comparison run in turn, so that other load on the machine affects all of them
alike. The clock is read when the GPU has finished, and the median of the repeats is reported.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished all queued work; on a CPU, do nothing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_seconds(function: Callable[[], object], device: torch.device) -> float:
    """Return the wall-clock seconds of one call."""
    synchronise(device)
    start = time.perf_counter()
    function()
    synchronise(device)
    return time.perf_counter() - start


def median_seconds(
    functions: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    warmup: int,
    repeats: int,
) -> dict[str, float]:
    """Return each function's median seconds, called in turn after untimed warm-up rounds."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(warmup + repeats):
        for name, function in functions.items():
            elapsed = measure_seconds(function, device)
            if round_ >= warmup:
                times[name].append(elapsed)
    return {name: statistics.median(values) for name, values in times.items()}


def machine(device: torch.device) -> str:
    """Return the device's name, torch's version and the number of threads."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def with_changes(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options and collect those of `--set` in `options.overrides`."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a training option; may be repeated",
    )
    options = parser.parse_args()
    options.overrides = dict(override.split("=", 1) for override in options.overrides)
    return options
