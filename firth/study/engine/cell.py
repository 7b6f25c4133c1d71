"""Cells: the runs of a study's grid, each a function with settings and a seed.

A cell is named by a hash of what its result depends on: the function, its settings, the contents of
files among them, the cells that it uses, the seed and Firth's version. So a cell that has finished
once is found again by any study that needs the same.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import firth
from firth.utils.files import sha256

MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")  # without logs


@dataclass(frozen=True, eq=False)
class Cell:
    """A run: `function(context, **settings)` returns JSON values.

    Settings are JSON values, paths (of which the contents count), other cells and their files.

    >>> def double(context, number):
    ...     return {"value": 2 * number}
    >>> Cell(double, {"number": 1}) == Cell(double, {"number": 1}, name="another name")
    True
    >>> Cell(double, {"number": 1}) == Cell(double, {"number": 1}, seed=1)
    False
    """

    function: Callable[..., Mapping[str, Any]]
    settings: Mapping[str, Any]
    seed: int = 0
    name: str = ""  # in tables
    alone: bool = False  # it measures time, so that nothing may run beside it

    def __truediv__(self, file: str) -> CellFile:
        return CellFile(self, file)

    @cached_property
    def digest(self) -> str:
        """The hash of what the result depends on."""
        text = json.dumps(self.describe(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def describe(self) -> dict[str, Any]:
        """Return what the result depends on as JSON values."""
        return {
            "function": f"{self.function.__module__}.{self.function.__qualname__}",
            "code": _code_hash(self.function),
            "settings": {name: _described(value) for name, value in self.settings.items()},
            "seed": self.seed,
            "firth": firth.__version__,
        }

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.digest == other.digest


@dataclass(frozen=True)
class CellFile:
    """A file in the folder of a cell."""

    cell: Cell
    name: str

    def __truediv__(self, name: str) -> CellFile:
        return CellFile(self.cell, f"{self.name}/{name}")


def _code_hash(function: Callable[..., Any]) -> str:
    """Return a hash of the function's module, so that a changed function runs again."""
    try:
        text = inspect.getsource(sys.modules[function.__module__])
    except (OSError, TypeError):  # typed into an interpreter
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _described(value: Any) -> Any:
    if isinstance(value, Cell):
        return {"cell": value.digest}
    if isinstance(value, CellFile):
        return {"cell": value.cell.digest, "file": value.name}
    if isinstance(value, Path):
        return {"sha256": content_hash(value)}
    if isinstance(value, Mapping):
        return {str(key): _described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_described(item) for item in value]
    return value


def content_hash(path: Path) -> str:
    """Return the SHA-256 of a file, of a model's files, or of all files in a folder."""
    if path.is_file():
        return _file_hash(path)
    is_model = (path / "config.json").is_file()
    files = [file for pattern in MODEL_FILES for file in path.glob(pattern)]
    if not is_model:
        files = [file for file in path.rglob("*") if file.is_file()]
    sums = [f"{file.relative_to(path)} {_file_hash(file)}" for file in sorted(files)]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _file_hash(path: Path) -> str:
    status = path.stat()
    return _hash_of_unchanged(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash_of_unchanged(path: Path, size: int, modified: int) -> str:
    """Hash a file once, as long as it does not change: many cells use the same model."""
    return sha256(path)
