"""Cells that shorten the texts of questions, so that small models are trained in minutes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from firth.data.sentences import sentence_starts
from firth.study.cells.finetuning_cells import read_rows
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.utils.files import atomic_file
from firth.utils.rng import derive_key


def short_contexts(context: CellContext, *, data: Cell, max_words: int) -> Mapping[str, Any]:
    """Cut the texts of the questions of `split_task_data` to `max_words`, around the answer."""
    for name in ("train.jsonl", "dev.jsonl", "test.jsonl"):
        rows = read_rows(context.path(data) / name)
        with atomic_file(context.folder / name) as file:
            for number, row in enumerate(rows):
                short = shorten(row, max_words, derive_key(0, number))
                file.write(json.dumps(short, ensure_ascii=False).encode() + b"\n")
    return context.result(data)


def shorten(row: Mapping[str, Any], max_words: int, key: int) -> dict[str, Any]:
    """Keep whole sentences of a row's text: that of the answer, and some before and after it.

    The `key` decides how many sentences before the answer are kept, so that its place says nothing.

    >>> row = {"context": "Ann left. Bob ran home.", "answers": {"text": ["Bob"]}}
    >>> row["answers"]["answer_start"] = [10]
    >>> shorten(row, 3, 0)
    {'context': 'Bob ran home.', 'answers': {'text': ['Bob'], 'answer_start': [0]}}
    """
    text, answers = row["context"], row["answers"]
    if not answers["text"]:
        return dict(row)
    answer, begin = answers["text"][0], answers["answer_start"][0]
    starts = [*sentence_starts(text), len(text)]
    own = bisect_right(starts, begin) - 1
    last = bisect_right(starts, begin + len(answer) - 1)  # the sentence after the answer
    first = own - key % (own + 1)
    while first < own and len(text[starts[first] : starts[last]].split()) > max_words:
        first += 1
    while last < len(starts) - 1 and (
        len(text[starts[first] : starts[last + 1]].split()) <= max_words
    ):
        last += 1
    kept = text[starts[first] : starts[last]]
    cut = starts[first] + len(kept) - len(kept.lstrip())
    found = {"text": [answer], "answer_start": [begin - cut]}
    return {**row, "context": kept.strip(), "answers": found}
