"""The runs of the study `timeline`: pre-training, training and scoring of each method."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from firth.study.cells.baseline_cells import tfidf
from firth.study.cells.evaluation_cells import bits_per_byte
from firth.study.cells.finetuning_cells import finetuned
from firth.study.cells.input_cells import prepared_text
from firth.study.cells.pretraining_cells import MODEL
from firth.study.cells.timeline_cells import pretrained_by_passes
from firth.study.engine.cell import Cell
from firth.study.engine.grid import Results
from firth.study.engine.study import StudyRun
from firth.study.timeline_data import TimelineData
from firth.study.timeline_models import BAG_OF_WORDS, NGRAMS, TEXT, Method

MAX_WORDS = 60  # of a held-out text; its second half is predicted


def method_cells(run: StudyRun, data: TimelineData, method: Method, count: int) -> list[Cell]:
    """Return the cells, one for each seed, that score a method with a number of labels."""
    if data.labelled is None:
        scored = {"text": data.held_out, "texts": run.settings.texts, "max_words": MAX_WORDS}
        return [
            Cell(
                bits_per_byte,
                {"model": pretraining(run, data, method, seed) / MODEL, **scored},
                seed=seed,
                name=f"{method.name}, seed {seed}",
            )
            for seed in run.seeds
        ]
    name = f"{method.name}, {count:,} labels"
    if method.name in (BAG_OF_WORDS, NGRAMS):
        longest = {"longest": 1} if method.name == BAG_OF_WORDS else {}
        return run.with_seeds(tfidf, name, data=data.labelled, labels=count, **longest)
    options = {
        **method.options,
        "batch_size": min(data.batch_size, count),
        "overrides": {**method.options.get("overrides", {}), "steps": data.steps},
    }
    shared = {"task": data.task, "data": data.labelled, "labels": count, "options": options}
    return run.with_seeds(finetuned, name, **_models(run, data, method), **shared)


def _models(run: StudyRun, data: TimelineData, method: Method) -> dict[str, Any]:
    """Return the model that is trained on the labels, and its word vectors if it has some."""
    if not method.preset:
        return {"model": method.model}
    pretrained = pretraining(run, data, method) / MODEL
    return {"model": method.model, "vectors": pretrained} if method.model else {"model": pretrained}


def pretraining(run: StudyRun, data: TimelineData, method: Method, seed: int = 0) -> Cell:
    """Return the cell that pre-trains; once for all seeds of fine-tuning, as a published model."""
    settings = run.settings
    kind = "wordpiece" if data.task == TEXT else method.tokenizer
    size = settings.max_words if kind == "word" else settings.vocab_size
    text = {"text": data.text, "valid": data.held_out, "tokenizer": None, "vocab_size": size}
    shards = Cell(prepared_text, {**text, "kind": kind}, name=f"shards of {kind} tokens")
    loop = {"batch_tokens": settings.batch_tokens, "max_length": settings.max_length}
    how = {
        "preset": method.preset,
        "passes": settings.passes,
        "options": {**loop, "overrides": {"validate_every": 1, **method.sizes}},
    }
    name = f"{method.name}, pre-training"
    return Cell(pretrained_by_passes, {"data": shards, **how}, seed=seed, name=name)


def cost(
    run: StudyRun, data: TimelineData, method: Method, cells: Sequence[Cell], results: Results
) -> dict[str, float]:
    """Return the parameters of a method, and the seconds of its training and pre-training."""
    own, values = results.values_of(cells), dict[str, float]()
    if own and data.labelled is not None:
        values["seconds"] = fmean(found["seconds"] for found in own)
        values["parameters"] = own[0]["parameters"]
    if method.preset:
        seed = run.seeds[0] if data.labelled is None else 0
        if (before := run.cache.find(pretraining(run, data, method, seed))) is not None:
            values["pretraining_seconds"] = before.values["seconds"]
            values.setdefault("parameters", before.values["parameters"])
    return values
