"""Functions of cells without a model, for tests of the engine; workers import this module."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.utils.errors import InputError


def counted(context: CellContext, *, number: int, log: str) -> Mapping[str, Any]:
    """Return a score, and log that the cell has run."""
    with open(log, "a") as file:
        file.write(f"{number} {context.seed}\n")
    draws = np.random.default_rng(1000 * number + context.seed).random(20) < number / 10
    return {"scores": {"accuracy": score_values(draws)}, "number": number}


def failing(context: CellContext, *, number: int) -> Mapping[str, Any]:
    """Fail for odd numbers."""
    if number % 2:
        raise InputError(f"file.tsv line {number} is bad.")
    return {"scores": {"accuracy": score_values([1.0])}}


def without_memory(context: CellContext) -> Mapping[str, Any]:
    """Fail as torch's allocator does."""
    raise RuntimeError("not enough memory")


def on_a_full_disk(context: CellContext) -> Mapping[str, Any]:
    """Fail as a write on a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def killed_at(context: CellContext, *, number: int, log: str) -> Mapping[str, Any]:
    """Kill the process in cell 2, unless a file says that it was killed before."""
    mark = Path(log).with_suffix(".killed")
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(context, number=number, log=log)


def interrupted_at(context: CellContext, *, number: int, log: str) -> Mapping[str, Any]:
    """Raise KeyboardInterrupt in cell 2, unless a file says that it was interrupted before."""
    mark = Path(log).with_suffix(".interrupted")
    if number == 2 and not mark.exists():
        mark.touch()
        raise KeyboardInterrupt
    return counted(context, number=number, log=log)


def written(context: CellContext, *, text: str) -> Mapping[str, Any]:
    """Write a file that other cells read."""
    (context.folder / "text.txt").write_text(text)
    return {}


def read(context: CellContext, *, file: Any) -> Mapping[str, Any]:
    """Read the file of another cell."""
    return {"text": context.path(file).read_text()}


def cells(function: Any, count: int, log: Path) -> list[Cell]:
    """Make cells with the numbers 0 to count - 1."""
    return [
        Cell(function, {"number": i, "log": str(log)}, name=f"number {i}") for i in range(count)
    ]
