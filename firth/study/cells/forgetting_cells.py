"""Cells that measure what fine-tuning changes beside its task: language modelling, another task."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from firth.model import Model, load
from firth.study.cells.finetuning_cells import finetune_on_cell, read_rows, test_scores
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values
from firth.tasks.inputs import make_input_template, task_tokenizer
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.running_text import read_passages
from firth.tasks.readers.subsampling import stratified_sample
from firth.tasks.replay import TextReplay
from firth.utils.errors import InputError
from firth.utils.rng import Floats
from firth.utils.threads import single_threaded

LOSS, OLD_HEAD, NEW_HEAD = "loss", "other task, old head", "other task, new head"
HELD_OUT, REPLAYED = "held-out.txt", "replayed.txt"
HEAD = "head.npz"  # of the other task, fitted before fine-tuning
MAX_LENGTH = 128  # tokens of a text whose loss is measured
MIN_PASSAGES = 10
EVERY = 5  # of one file, each fifth passage is held out


def language_texts(
    context: CellContext, *, text: File, held_out: File | None, measured: int, replayed: int
) -> Mapping[str, Any]:
    """Write the passages that are replayed and those on which the loss is measured."""
    path = context.path(text)
    passages = _passages(path)
    if held_out is not None:
        kept, rest = _passages(context.path(held_out)), passages
    elif len(passages) < MIN_PASSAGES:
        raise InputError(
            f"{path} has {len(passages)} passages; {MIN_PASSAGES} are needed (blocks between blank "
            "lines, or rows)."
        )
    else:
        kept = passages[::EVERY]
        rest = [passage for i, passage in enumerate(passages) if i % EVERY]
    parts = {HELD_OUT: kept[:measured], REPLAYED: rest[:replayed]}
    for name, part in parts.items():
        (context.folder / name).write_text("\n\n".join(part) + "\n", encoding="utf-8")
    return {name: len(part) for name, part in parts.items()}


def _passages(path: Path) -> list[str]:
    return [passage.text.strip() for passage in read_passages(TaskFile(path))]


def before_finetuning(
    context: CellContext, *, model: File, texts: Cell, other: Cell, labels: int
) -> Mapping[str, Any]:
    """Measure a model that was only pre-trained, and fit a head for another task."""
    loaded = load(context.path(model), device=context.device)
    vectors = probe_data(loaded, context.path(other), labels)
    head = fit_head(vectors)
    np.savez(context.folder / HEAD, **head)
    right = head_scores(vectors, head)
    losses = language_losses(loaded, context.path(texts) / HELD_OUT)
    return {"scores": {LOSS: losses, OLD_HEAD: right, NEW_HEAD: right}}


def after_finetuning(
    context: CellContext,
    *,
    model: File,
    task: str,
    data: Cell,
    labels: int,
    options: Mapping[str, Any],
    replay: bool,
    before: Cell,
) -> Mapping[str, Any]:
    """Fine-tune, and measure the task, the language modelling loss and the other task."""
    texts, other = (context.path(before.settings[name]) for name in ("texts", "other"))
    found = finetune_on_cell(
        context,
        model=model,
        task=task,
        data=data,
        labels=labels,
        options={**options, "replay": texts / REPLAYED} if replay else options,
        callback=lambda kind, metrics: None,
    )
    scores = test_scores(found.model, task, context.path(data) / "test.jsonl")
    vectors = probe_data(found.model, other, before.settings["labels"])
    scores[OLD_HEAD] = head_scores(vectors, dict(np.load(context.path(before) / HEAD)))
    scores[NEW_HEAD] = head_scores(vectors, fit_head(vectors))
    if found.language_head is not None:
        found.model.network.heads["language"] = found.language_head
    scores[LOSS] = language_losses(found.model, texts / HELD_OUT)
    shutil.rmtree(found.path)
    return {"scores": scores, "trainable_parameters": found.trainable_parameters}


def language_losses(model: Model, file: Path) -> dict[str, list[float]]:
    """Compute the loss of the pre-training objective on each passage, with the same masks."""
    if model.tokenizer is None:
        raise InputError("The model has no tokenizer, so that it cannot read a text.")
    length = min(MAX_LENGTH, model.network.config.input_config.max_positions)
    tokenizer = task_tokenizer(model.config, model.tokenizer, "language")
    template = make_input_template(model.config, tokenizer, length, model.encoder_tokenizer)
    found = TextReplay(file, template, size=1, seed=0).row_losses(model.network)
    sums, counts = zip(*found, strict=True)
    return score_values(sums, counts)


# ---- the other task


@dataclass(frozen=True)
class ProbeData:
    """The mean-pooled hidden states and labels of training and test texts."""

    train: Floats  # (N, W)
    train_labels: list[str]
    test: Floats  # (M, W)
    test_labels: list[str]


def probe_data(model: Model, folder: Path, labels: int) -> ProbeData:
    """Embed `labels` training texts of another task, and its test texts."""
    rows, test = (read_rows(folder / f"{name}.jsonl") for name in ("train", "test"))
    chosen, _ = stratified_sample([row["label"] for row in rows], count=min(labels, len(rows)))
    train = [rows[i] for i in chosen]
    vectors = (
        model.embed([row["text"] for row in part], pooling="mean", normalize=False)
        for part in (train, test)
    )
    first, second = (np.asarray(found, np.float64) for found in vectors)
    return ProbeData(first, [row["label"] for row in train], second, [row["label"] for row in test])


def fit_head(data: ProbeData) -> dict[str, Any]:
    """Fit logistic regression on the training vectors."""
    from sklearn.linear_model import LogisticRegression

    middle, spread = data.train.mean(0), np.maximum(data.train.std(0), 1e-6)
    scaled = (data.train - middle) / spread
    with single_threaded():
        fit = LogisticRegression(C=0.1, max_iter=1000).fit(scaled, data.train_labels)
    weight = fit.coef_ / spread
    return {"weight": weight, "bias": fit.intercept_ - weight @ middle, "labels": fit.classes_}


def head_scores(data: ProbeData, head: Mapping[str, Any]) -> dict[str, list[float]]:
    """Score a fitted head on the test vectors."""
    logits = data.test @ head["weight"].T + head["bias"]  # (M, K)
    if logits.shape[1] == 1:  # two labels
        logits = np.concatenate([-logits, logits], axis=1)
    predicted = head["labels"][logits.argmax(1)]
    return score_values(predicted == np.array(data.test_labels))
