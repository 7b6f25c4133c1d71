"""Cells that pre-train a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.jobs.pretraining import pretrain
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.study.engine.statistics import score_values

MODEL = "model"  # the run directory in the folder of the cell
ONE_VALIDATION = {"validate_every": 1, "validate_tokens": 2048}  # if another cell evaluates


def pretrained(
    context: CellContext,
    *,
    data: Cell,
    options: Mapping[str, Any],
    source: File | None = None,
) -> Mapping[str, Any]:
    """Pre-train a model on the shards of `prepared_text`; `cell / MODEL` is its directory.

    `options` are arguments of `pretrain`: preset, objective, tokens, overrides, … `source` is a
    model to continue from.
    """
    found = pretrain(
        data=context.path(data) / "shards",
        seed=context.seed,
        device=context.device,
        callback=_quiet,
        source=None if source is None else context.path(source),
        **options,
        **context.run_options(MODEL),
    )
    values = found.values()
    kept = ("parameters", "steps", "tokens", "seconds", "loss", "notes")
    scores = {} if found.loss is None else {"loss": score_values([found.loss])}
    return {"scores": scores, **{name: values[name] for name in kept}}


def _quiet(kind: str, metrics: Mapping[str, Any]) -> None:
    pass
