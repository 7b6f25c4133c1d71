"""The cache of a study: a folder with the result and the files of each finished cell."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.study.engine.cell import Cell, CellFile
from firth.training.run_directory import find_run
from firth.utils.errors import FirthError, Interrupted, StorageError, storage_errors
from firth.utils.files import atomic_file, locked

RESULT, LOCK = "result.json", "lock"
FULL_DISK = "Free some space and repeat the command: finished cells are kept."


@dataclass(frozen=True)
class CellResult:
    """What a cell returned, or why it failed."""

    values: Mapping[str, Any]
    seconds: float = 0.0
    cached: bool = False
    error: str = ""

    @property
    def headline(self) -> str:
        """The first score as a text, or the error."""
        for name, score in self.values.get("scores", {}).items():
            value = sum(score["numerators"]) / max(sum(score["denominators"]), 1e-12)
            return f"{name} {value:.4g}"
        return self.error


@dataclass(frozen=True)
class CellCache:
    """The finished cells in a folder; results on different kinds of devices are kept apart."""

    folder: Path
    device: str = "cpu"

    def directory(self, cell: Cell) -> Path:
        """The directory of a cell."""
        return self.folder / self.device.partition(":")[0] / cell.digest

    def find(self, cell: Cell) -> CellResult | None:
        """Return the result of a cell that has finished."""
        file = self.directory(cell) / RESULT
        if not file.is_file():
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        return CellResult(found["values"], found["seconds"], cached=True)

    def files(self, cell: Cell) -> Path:
        """Return the directory of a cell with its files; if some were deleted, run it again."""
        self.run(cell, needs_files=True)
        return self.directory(cell)

    def run(self, cell: Cell, needs_files: bool = False) -> CellResult:
        """Run a cell, or return its result if it has finished. Another process waits."""
        folder = self.directory(cell)
        with storage_errors(folder, FULL_DISK):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / LOCK, f"working in {folder}", wait=True):
            found = self.find(cell)
            if found is not None and not (needs_files and _lacks_files(folder)):
                return found
            begun = time.monotonic()
            context = CellContext(folder, cell.seed, self.device, self)
            values = dict(cell.function(context, **cell.settings))
            seconds = time.monotonic() - begun
            stored = {"name": cell.name, **cell.describe(), "seconds": seconds, "values": values}
            stored["files"] = sorted({path.name for path in folder.iterdir()} - {LOCK, RESULT})
            with storage_errors(folder, FULL_DISK), atomic_file(folder / RESULT) as file:
                file.write(json.dumps(stored).encode())
            return CellResult(values, seconds)

    def try_to_run(self, cell: Cell) -> CellResult:
        """Run a cell; an error becomes its result unless it would affect all cells."""
        try:
            return self.run(cell)
        except (StorageError, Interrupted):
            raise
        except FirthError as error:
            return CellResult({}, error=str(error))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(f"The disk is full: {self.folder}. {FULL_DISK}") from error
            return CellResult({}, error=f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class CellContext:
    """What the function of a cell gets: its folder, seed and device, and other cells' results."""

    folder: Path
    seed: int
    device: str
    cache: CellCache

    def result(self, cell: Cell) -> Mapping[str, Any]:
        """Return the values of another cell, which is run if it has not finished."""
        return self.cache.run(cell).values

    def path(self, file: Path | Cell | CellFile) -> Path:
        """Return the path of a file or folder, which may be that of another cell."""
        if isinstance(file, Path):
            return file
        cell, name = (file, "") if isinstance(file, Cell) else (file.cell, file.name)
        return self.cache.files(cell) / name

    def run_options(self, name: str) -> dict[str, Any]:
        """Return `out` and `resume` of a training run in this cell, which may have been killed."""
        out = self.folder / name
        found = find_run(out)
        resume = bool(found) and not found.get("finished")
        if not resume:
            shutil.rmtree(out, ignore_errors=True)
        return {"out": out, "resume": resume}


def _lacks_files(folder: Path) -> bool:
    """Tell whether files were deleted that a finished cell wrote."""
    written = json.loads((folder / RESULT).read_text(encoding="utf-8")).get("files", ())
    return not all((folder / name).exists() for name in written)
