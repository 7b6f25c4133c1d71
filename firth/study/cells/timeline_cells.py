"""Cells of the study `timeline`: pre-training with a budget in passes over the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.data.shards import Shards
from firth.jobs.pretraining import pretrain
from firth.models.presets import preset as find_preset
from firth.study.cells.pretraining_cells import MODEL
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext
from firth.training.fitted_objectives import FITTED


def pretrained_by_passes(
    context: CellContext, *, data: Cell, preset: str, passes: int, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Pre-train on `passes` times the tokens of the shards; `cell / MODEL` is the run.

    Word vectors are trained for as many epochs; n-grams are counted once, for more passes would
    change nothing. `options` are arguments of `pretrain` for the training loop.
    """
    shards = context.path(data) / "shards"
    fitted = FITTED.get(find_preset(preset).objective)
    if fitted is None:
        budget: dict[str, Any] = {"tokens": passes * int(Shards(shards).lengths.sum()), **options}
    else:
        budget = {"overrides": {"epochs": passes} if "epochs" in fitted.options else {}}
    found = pretrain(
        data=shards,
        preset=preset,
        seed=context.seed,
        device=context.device,
        callback=_quiet,
        **budget,
        **context.run_options(MODEL),
    )
    values = found.values()
    return {name: values[name] for name in ("parameters", "tokens", "seconds")}


def _quiet(kind: str, metrics: Mapping[str, Any]) -> None:
    pass
