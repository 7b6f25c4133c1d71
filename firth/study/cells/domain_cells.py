"""Cells with two domains: labelled examples of one, and test examples and text of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from firth.data.stories.reviews import SUBJECTS, review
from firth.data.stories.scenes import SCENES
from firth.data.stories.story_builder import StoryBuilder
from firth.study.cells.finetuning_cells import read_rows
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.utils.errors import InputError
from firth.utils.files import atomic_file

GENERAL, TARGET = "general.txt", "target.txt"  # unlabelled text
SOURCE_ROWS, TARGET_ROWS = "source.jsonl", "target.jsonl"
LABELS = ("negative", "positive")


def review_domains(
    context: CellContext, *, source: Sequence[str], target: Sequence[str], texts: int, rows: int
) -> Mapping[str, Any]:
    """Write reviews of two kinds of things: labelled rows, and unlabelled text.

    The general text has reviews of everything but the target; no text is among the labelled rows.
    """
    others = [kind for kind in SUBJECTS if kind not in target]
    files = {GENERAL: others, TARGET: target}
    for place, (name, kinds) in enumerate(files.items()):
        reviews = (text for text, _ in _reviews(kinds, texts, f"domain text {place}"))
        (context.folder / name).write_text("\n\n".join(reviews) + "\n", encoding="utf-8")
    for name, kinds in {SOURCE_ROWS: source, TARGET_ROWS: target}.items():
        labelled = [
            {"text": text, "label": label} for text, label in _reviews(kinds, rows, f"rows {name}")
        ]
        write_rows(context.folder / name, labelled)
    return {"texts": texts, "rows": rows}


def _reviews(kinds: Sequence[str], count: int, seed: str) -> Iterable[tuple[str, str]]:
    """Yield reviews with their labels, which alternate."""
    for number in range(count):
        builder = StoryBuilder(Random(f"{seed} {number}"), SCENES)
        builder.start()
        kind = kinds[number // 2 % len(kinds)]
        yield review(builder, bool(number % 2), kind), LABELS[number % 2]


def joined_domains(
    context: CellContext, *, source: Cell, target: Cell, train_on: str
) -> Mapping[str, Any]:
    """Join two cells of `split_task_data`: train on one domain, test on source and target.

    The test file has both, the source first, so that one run is scored on both.
    """
    folders = {"source": context.path(source), "target": context.path(target)}
    tests = {name: read_rows(folder / "test.jsonl") for name, folder in folders.items()}
    train = read_rows(folders[train_on] / "train.jsonl")
    known = {row["label"] for row in train if "label" in row}
    unknown = {row["label"] for rows in tests.values() for row in rows if "label" in row} - known
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise InputError(f"Both domains need the same labels; only one has {names}.")
    write_rows(context.folder / "train.jsonl", train)
    write_rows(context.folder / "dev.jsonl", read_rows(folders[train_on] / "dev.jsonl"))
    write_rows(context.folder / "test.jsonl", [*tests["source"], *tests["target"]])
    sizes = {f"{name}_test": len(rows) for name, rows in tests.items()}
    return {"train": len(train), **sizes}


def training_texts(context: CellContext, *, data: Cell) -> Mapping[str, Any]:
    """Write the texts of training examples as unlabelled text."""
    rows = read_rows(context.path(data) / "train.jsonl")
    texts = [" ".join(str(value) for name, value in row.items() if name != "label") for row in rows]
    (context.folder / GENERAL).write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"texts": len(texts)}


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSONL."""
    with atomic_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
