"""What tests of file formats share: one-sentence errors, and the memory of loading."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from firth.utils.errors import FirthError, InputError


def error_sentence(
    read: Callable[[Path], object], path: Path, kind: type[FirthError] = InputError
) -> str:
    """Return the one sentence of the error that reading raises, without the path it names."""
    with pytest.raises(FirthError) as caught:
        read(path)
    message = str(caught.value)
    assert type(caught.value) is kind, message
    assert "\n" not in message
    assert message[-1] in ".?"
    assert str(path) in message
    assert len(message) < len(str(path)) + 400
    return message.replace(str(path), "")


def is_mapped(file: Path, tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies in the pages of a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(file)):
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if begin <= tensor.data_ptr() < end:
                return True
    return False


PEAK = """
import sys
from pathlib import Path
import torch

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024

torch.nn.Embedding(8, 8, device="meta")  # for this, torch imports 70 MB of itself
"""


def measure_memory(code: str, *paths: Path) -> list[float]:
    """Run code that calls `peak()`, the largest memory in bytes, and prints numbers."""
    command = [sys.executable, "-c", PEAK + code, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]
