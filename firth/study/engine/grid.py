"""Run the cells of a grid: those that have finished are read, the others run in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache, CellResult
from firth.study.engine.statistics import Scores
from firth.utils.errors import FirthError
from firth.utils.workers import ordered_map


@dataclass(frozen=True)
class CellProgress:
    """A cell that has finished, and how many have."""

    cell: Cell
    result: CellResult
    done: int
    total: int


OnResult = Callable[[CellProgress], None]


class Results(Mapping[Cell, CellResult]):
    """The results of cells."""

    def __init__(self, found: Mapping[Cell, CellResult]) -> None:
        self.found = dict(found)

    def __getitem__(self, cell: Cell) -> CellResult:
        return self.found[cell]

    def __iter__(self) -> Iterator[Cell]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def values_of(self, cells: Iterable[Cell]) -> list[Mapping[str, Any]]:
        """Return the values of the cells that did not fail."""
        return [self.found[cell].values for cell in cells if not self.found[cell].error]

    def scores(self, cells: Sequence[Cell], metric: str) -> Scores | None:
        """Stack a score of the same run with several seeds; None if all failed."""
        places = [place for place, cell in enumerate(cells) if not self.found[cell].error]
        found = [self.found[cells[place]].values["scores"][metric] for place in places]
        return Scores.of(found, places) if found else None

    def first_error(self, cells: Iterable[Cell]) -> str:
        """Return the error of the first cell that failed; "" if none did."""
        return next((error for cell in cells if (error := self.found[cell].error)), "")


def run_cells(
    cells: Iterable[Cell],
    cache: CellCache,
    *,
    workers: int = 1,
    on_result: OnResult = lambda progress: None,
) -> Results:
    """Run the cells that have not finished, and return the results of all.

    Each worker process computes with one thread: for small networks two cells at once are faster
    than two threads in one. A cell that fails has the reason as its result.
    """
    grid = list(dict.fromkeys(cells))
    found: dict[Cell, CellResult] = {}

    def add(cell: Cell, result: CellResult) -> None:
        found[cell] = result
        on_result(CellProgress(cell, result, len(found), len(grid)))

    for cell in grid:
        if (known := cache.find(cell)) is not None:
            add(cell, known)
    left = [cell for cell in grid if cell not in found]
    for cell in (cell for cell in left if cell.alone):
        add(cell, cache.try_to_run(cell))
    shared = [cell for cell in left if not cell.alone]
    workers = min(workers, len(shared))
    for cell, result in zip(shared, _in_processes(shared, cache, workers), strict=True):
        add(cell, result)
    if found and all(result.error for result in found.values()):
        raise FirthError(f"All {len(grid)} cells failed. {grid[0].name}: {found[grid[0]].error}")
    return Results({cell: found[cell] for cell in grid})


def _in_processes(cells: Sequence[Cell], cache: CellCache, workers: int) -> Iterator[CellResult]:
    if workers <= 1:
        return map(cache.try_to_run, cells)
    return ordered_map(partial(_with_one_thread, cache), cells, workers)


def _with_one_thread(cache: CellCache) -> Callable[[Cell], CellResult]:
    import torch

    torch.set_num_threads(1)
    return cache.try_to_run
