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
TEXT_COLUMNS = ("text", "text_a", "text_b", "question", "context")


def review_domains(
    context: CellContext, *, source: Sequence[str], target: Sequence[str], texts: int, rows: int
) -> Mapping[str, Any]:
    """Write reviews of two kinds of things: labelled rows, and unlabelled text.

    The general text has reviews of everything but the target. A text that is equal to a labelled
    row is left out.
    """
    labelled = {
        name: [
            {"text": text, "label": label} for text, label in _reviews(kinds, rows, f"rows {name}")
        ]
        for name, kinds in {SOURCE_ROWS: source, TARGET_ROWS: target}.items()
    }
    for name, examples in labelled.items():
        write_rows(context.folder / name, examples)
    known = {row["text"] for examples in labelled.values() for row in examples}
    others = [kind for kind in SUBJECTS if kind not in target]
    for place, (name, kinds) in enumerate({GENERAL: others, TARGET: target}.items()):
        reviews = (text for text, _ in _reviews(kinds, texts, f"domain text {place}"))
        kept = "\n\n".join(text for text in reviews if text not in known)
        (context.folder / name).write_text(kept + "\n", encoding="utf-8")
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
    unknown = _labels([*tests["source"], *tests["target"]]) - _labels(train)
    if unknown:
        names = ", ".join(sorted(map(str, unknown)))
        raise InputError(f"Both domains need the same labels; only one has {names}.")
    write_rows(context.folder / "train.jsonl", train)
    write_rows(context.folder / "dev.jsonl", read_rows(folders[train_on] / "dev.jsonl"))
    write_rows(context.folder / "test.jsonl", [*tests["source"], *tests["target"]])
    sizes = {f"{name}_test": len(rows) for name, rows in tests.items()}
    multi_label = context.result(source)["multi_label"]
    return {"train": len(train), **sizes, "multi_label": multi_label}


def _labels(rows: Iterable[Mapping[str, Any]]) -> set[Any]:
    """Return all labels of rows, which may have none or several.

    >>> sorted(_labels([{"label": "a"}, {"label": ["a", "b"]}, {"words": ["It"]}]))
    ['a', 'b']
    """
    found = (row.get("label", []) for row in rows)
    return {one for label in found for one in (label if isinstance(label, list) else [label])}


def training_texts(context: CellContext, *, data: Cell) -> Mapping[str, Any]:
    """Write the texts of training examples as unlabelled text."""
    texts = [row_text(row) for row in read_rows(context.path(data) / "train.jsonl")]
    (context.folder / GENERAL).write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return {"texts": len(texts)}


def row_text(row: Mapping[str, Any]) -> str:
    """Return the text of a row of any task, without labels and answers.

    >>> row_text({"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]})
    'EU rejects'
    >>> row_text({"id": "1", "question": "Who?", "context": "Ann.", "answers": {"text": ["Ann"]}})
    'Who? Ann.'
    """
    parts = [row[name] for name in TEXT_COLUMNS if name in row]
    return " ".join([*parts, *row.get("words", [])])


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSONL."""
    with atomic_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
