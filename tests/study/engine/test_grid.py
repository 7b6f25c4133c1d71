"""Cells run once, survive kills, and fail alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.study.engine.grid import CellProgress, run_cells
from firth.utils.errors import FirthError, StorageError
from tests.study.engine import made_up_cells as made_up


def test_a_finished_cell_never_runs_again(tmp_path: Path) -> None:
    log, cache = tmp_path / "log", CellCache(tmp_path / "cells")
    grid = made_up.cells(made_up.counted, 3, log)
    first = run_cells(grid, cache)
    again = run_cells([*grid, *made_up.cells(made_up.counted, 4, log)], cache)
    assert log.read_text().split() == "0 0 1 0 2 0 3 0".split()
    assert [again[cell].values for cell in grid] == [first[cell].values for cell in grid]
    assert [again[cell].cached for cell in again] == [True, True, True, False]


def test_names_do_not_matter_but_settings_seeds_and_contents_do(tmp_path: Path) -> None:
    file = tmp_path / "data.tsv"
    file.write_text("a\tb\n")
    cell = Cell(made_up.read, {"file": file}, name="one")
    assert cell == Cell(made_up.read, {"file": Path(str(file))}, name="another")
    assert cell != Cell(made_up.read, {"file": file}, seed=1)
    assert cell != Cell(made_up.failing, {"file": file})
    file.write_text("a\tc\n")
    assert cell != Cell(made_up.read, {"file": file})


def test_all_files_of_a_folder_count_but_not_the_logs_of_a_model(tmp_path: Path) -> None:
    file = tmp_path / "texts/more/a.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("one")
    before = Cell(made_up.read, {"file": tmp_path / "texts"}).digest
    file.write_text("other")
    assert Cell(made_up.read, {"file": tmp_path / "texts"}).digest != before
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    before = Cell(made_up.read, {"file": model}).digest
    (model / "metrics.jsonl").write_text("{}")
    assert Cell(made_up.read, {"file": model}).digest == before
    (model / "model.safetensors").write_bytes(b"weights")
    assert Cell(made_up.read, {"file": model}).digest != before


def test_deleted_files_of_a_cell_are_made_again_where_they_are_needed(tmp_path: Path) -> None:
    cache, source = CellCache(tmp_path), Cell(made_up.written, {"text": "Hello."})
    file = cache.files(source) / "text.txt"
    file.unlink()
    assert cache.run(source).cached  # its result needs no file
    assert not file.exists()
    cell = Cell(made_up.read, {"file": source / "text.txt"})
    assert cache.run(cell).values == {"text": "Hello."}
    assert file.exists()


def test_cells_use_the_files_of_other_cells(tmp_path: Path) -> None:
    cache = CellCache(tmp_path)
    source = Cell(made_up.written, {"text": "Hello."})
    cell = Cell(made_up.read, {"file": source / "text.txt"})
    assert cache.run(cell).values == {"text": "Hello."}
    assert cache.find(source) is not None
    other = Cell(made_up.read, {"file": Cell(made_up.written, {"text": "Bye."}) / "text.txt"})
    assert cell != other
    assert cache.run(other).values == {"text": "Bye."}


@pytest.mark.slow
def test_processes_give_the_same_results_in_order(tmp_path: Path) -> None:
    grid = made_up.cells(made_up.counted, 4, tmp_path / "log")
    seen: list[CellProgress] = []
    several = run_cells(grid, CellCache(tmp_path / "two"), workers=2, on_result=seen.append)
    alone = run_cells(grid, CellCache(tmp_path / "one"))
    assert {c: r.values for c, r in several.items()} == {c: r.values for c, r in alone.items()}
    assert [(p.cell, p.done, p.total) for p in seen] == [
        (cell, i + 1, 4) for i, cell in enumerate(grid)
    ]


def test_a_cell_fails_alone_and_is_tried_again(tmp_path: Path) -> None:
    cache = CellCache(tmp_path)
    grid = [Cell(made_up.failing, {"number": i}, name=f"n={i}") for i in range(4)]
    found = run_cells([*grid, Cell(made_up.without_memory, {})], cache)
    assert [found[cell].error for cell in grid] == ["", "file.tsv line 1 is bad.", "",
                                                   "file.tsv line 3 is bad."]  # fmt: skip
    assert found.first_error(grid) == "file.tsv line 1 is bad."
    assert found.scores(grid[1:2], "accuracy") is None
    scores = found.scores(grid, "accuracy")
    assert scores is not None
    assert scores.numerators.shape == (2, 1)
    assert cache.find(grid[1]) is None
    with pytest.raises(FirthError, match="n=1"):
        run_cells(grid[1:2], cache)


def test_a_full_disk_ends_the_study(tmp_path: Path) -> None:
    cache, log = CellCache(tmp_path / "cells"), tmp_path / "log"
    finished = made_up.cells(made_up.counted, 1, log)
    with pytest.raises(StorageError, match="full"):
        run_cells([*finished, Cell(made_up.on_a_full_disk, {})], cache)
    assert cache.find(finished[0]) is not None


def test_ctrl_c_keeps_what_has_finished(tmp_path: Path) -> None:
    log, cache = tmp_path / "log", CellCache(tmp_path / "cells")
    grid = made_up.cells(made_up.interrupted_at, 4, log)
    with pytest.raises(KeyboardInterrupt):
        run_cells(grid, cache)
    assert [cache.find(cell) is not None for cell in grid] == [True, True, False, False]
    assert len(run_cells(grid, cache)) == 4
    assert [line[0] for line in log.read_text().splitlines()] == list("0123")


@pytest.mark.slow
def test_a_killed_study_continues(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from firth.study.engine.cell_cache import CellCache\n"
        "from firth.study.engine.grid import run_cells\n"
        "from tests.study.engine import made_up_cells as made_up\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "grid = made_up.cells(made_up.killed_at, 4, folder / 'log')\n"
        "run_cells(grid, CellCache(folder / 'cells'))\n"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True).returncode == -9
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line[0] for line in (tmp_path / "log").read_text().splitlines()] == list("0123")
