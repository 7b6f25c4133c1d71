"""What the machine is good at, and how much of it a run takes."""

from __future__ import annotations

import re
import resource
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from firth.errors import Misuse
from firth.models.transformer import Transformer
from firth.training.schedule import Stages
from firth.training.settings import Settings

LONG_STEPS, LONG_MINUTES = 1000, 2.0  # of a run in which half a minute of compiling pays

Kind = TypeVar("Kind", bound=Settings)


def best_device(asked: str | None = None) -> torch.device:
    """The one that is asked for, or the fastest there is."""
    there = torch.cuda.is_available()
    try:
        device = torch.device(asked or ("cuda" if there else "cpu"))
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise Misuse(f"There is no device {asked!r}; there are cpu and cuda.")
    if device.type == "cuda" and not there:
        raise Misuse("There is no GPU here that torch can use; leave --device out, or say cpu.")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # what is recorded is so on the one that is set
    return device


def suited(settings: Kind, device: str) -> Kind:
    """The settings with what is best here in place of `auto`.

    Half precision where the machine is faster in it; a compiler where a run on a GPU is long enough
    for it to pay; blocks that are recorded on every GPU.
    """
    if settings.precision == "auto":
        amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        faster = device == "cuda" or amx()
        settings = replace(settings, precision="bf16" if faster else "fp32")
    if settings.compile == "auto":
        steps = settings.steps or settings.tokens // Stages.parse(settings.batch).largest
        long = steps >= LONG_STEPS or settings.minutes >= LONG_MINUTES
        settings = replace(settings, compile="true" if device == "cuda" and long else "false")
    if settings.record == "auto":
        settings = replace(settings, record="true" if device == "cuda" else "false")
    return settings


def autocast(settings: Settings, device: torch.device) -> Any:
    """Half precision where the settings ask for it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


def prepare_network(network: Transformer, settings: Settings) -> None:
    """Let a network compute as the settings ask for."""
    if settings.recompute:
        network.checkpoint_activations()
    if settings.compile == "true":
        network.compile_blocks()
    if settings.record == "true":
        network.record_blocks()


def forget_memory(device: torch.device) -> None:
    """Let `memory_used` count from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_used(device: torch.device) -> int:
    """The most bytes the run has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")  # ru_maxrss counts the memory of whoever started us
    if status.is_file() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
