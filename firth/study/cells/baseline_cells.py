"""Cells without fine-tuning: TF-IDF with logistic regression, and prompting."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from firth.jobs.prompting import prompt
from firth.study.cells.finetuning_cells import read_rows
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tasks.readers.subsampling import stratified_sample
from firth.utils.threads import single_threaded


def tfidf(context: CellContext, *, data: Cell, labels: int, longest: int = 2) -> Mapping[str, Any]:
    """Classify with TF-IDF of words and word pairs (`longest` = 2), and logistic regression.

    This is scikit-learn's pipeline as it is. `firth finetune bow` has the same weights and
    classifier, but also reads punctuation, and takes seven times as long for 500 examples.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    folder = context.path(data)
    rows, test = read_rows(folder / "train.jsonl"), read_rows(folder / "test.jsonl")
    if labels:
        chosen, _ = stratified_sample(
            [row["label"] for row in rows], count=labels, seed=context.seed
        )
        rows = [rows[i] for i in chosen]
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, longest), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    begun = time.monotonic()
    with single_threaded():
        model.fit([_text(row) for row in rows], [row["label"] for row in rows])
        seconds = time.monotonic() - begun
        predicted = model.predict([_text(row) for row in test])
    right = np.array([row["label"] for row in test]) == predicted
    last = model[-1]
    size = last.coef_.size + last.intercept_.size
    return {
        "scores": {"accuracy": score_values(right)},
        "parameters": size,
        "seconds": seconds,
    }


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a row; of a pair, both."""
    return row["text"] if "text" in row else f"{row['text_a']} {row['text_b']}"


def prompted(
    context: CellContext,
    *,
    model: File,
    task: str,
    data: Cell,
    labels: int,
    options: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Prompt a model with demonstrations drawn from `labels` training examples (0: none)."""
    folder = context.path(data)
    shown: dict[str, Any] = {}
    if labels:
        rows = read_rows(folder / "train.jsonl")
        chosen, _ = stratified_sample(
            [row["label"] for row in rows], count=labels, seed=context.seed
        )
        shown = {"examples": [(rows[i]["text"], str(rows[i]["label"])) for i in chosen]}
        shown["shots"] = min(labels, options["shots"])
    kept = {name: value for name, value in options.items() if name != "shots"}
    found = prompt(
        context.path(model),
        task=task,
        data=folder / "test.jsonl",
        seed=context.seed,
        device=context.device,
        **shown,
        **kept,
    )
    right = found.demonstration_sets[0].right["accuracy"]
    return {"scores": {"accuracy": score_values(right)}, "prompt": found.prompt}
