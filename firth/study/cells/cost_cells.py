"""Cells that estimate memory and time of fine-tuning, as `firth finetune --dry-run` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from firth.jobs.finetuning import finetune
from firth.study.cells.finetuning_cells import finetune_inputs
from firth.study.cells.input_cells import File
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellContext


def estimated_cost(
    context: CellContext,
    *,
    model: File,
    task: str,
    data: Cell,
    labels: int,
    options: Mapping[str, Any],
    repeats: int = 2,
) -> Mapping[str, Any]:
    """Estimate the cost of a run from single steps; the fastest of `repeats` estimates counts.

    The peak memory of a process on the CPU includes Python and all libraries, which would hide
    the differences between strategies; so the sizes of weights, gradients, optimizer state and
    activations are added. On a GPU the memory is measured.
    """
    inputs = finetune_inputs(context, data, labels)
    found = [
        finetune(context.path(model), task=task, dry_run=True, **inputs, **options)
        for _ in range(repeats)
    ]
    rows = [one.rows[0] for one in found]
    seconds = [row.seconds for row in rows if row.seconds is not None]
    return {
        **rows[0].values(),
        "seconds": min(seconds) if seconds else None,
        "memory_is_measured": found[0].memory_is_measured,
    }
