"""The task files of a study: no example is in two of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from firth.study.cells.finetuning_cells import read_rows
from firth.study.cells.input_cells import split_task_data
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.utils.errors import InputError


def write(path: Path, labels: list[str]) -> Path:
    lines = [f"{path.stem} {i}\t{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return path


def split(folder: Path, data: Path, test: Path | None, task: str = "classify") -> dict[str, Any]:
    """Return the values of the cell and the texts of its files."""
    settings = {"task": task, "data": data, "test": test, "test_size": 30, "columns": {}}
    cache, cell = CellCache(folder), Cell(split_task_data, settings)
    values: Mapping[str, Any] = cache.run(cell).values
    files = {
        name: [row["text"] for row in read_rows(cache.directory(cell) / f"{name}.jsonl")]
        for name in ("train", "dev", "test")
    }
    return {"values": values, **files}


@pytest.mark.parametrize("separate", [True, False])
def test_dev_examples_are_neither_trained_nor_tested_on(tmp_path: Path, separate: bool) -> None:
    data = write(tmp_path / "train.tsv", ["a", "b"] * 100)
    test = write(tmp_path / "test.tsv", ["a", "b"] * 20) if separate else None
    found = split(tmp_path, data, test)
    assert len(found["test"]) == 30
    assert len(found["dev"]) == 16
    assert len(found["train"]) == found["values"]["train"] == 200 - 16 - (0 if separate else 30)
    texts = [*found["train"], *found["dev"], *found["test"]]
    assert len(set(texts)) == len(texts)
    assert all(text.startswith("train") for text in found["dev"])


def test_a_few_examples_are_all_trained_on(tmp_path: Path) -> None:
    data, test = write(tmp_path / "train.tsv", ["a", "b"]), write(tmp_path / "test.tsv", ["a"])
    assert split(tmp_path, data, test)["train"] == ["train 0", "train 1"]


def test_numeric_labels_are_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "train.tsv", ["0.5", "1.5"] * 20)
    with pytest.raises(InputError, match="numeric"):
        split(tmp_path, data, None, task="regress")
