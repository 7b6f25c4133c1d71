"""What studies of fine-tuning share: one task, one model, and runs that differ in one option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from firth.study.cells.finetuning_cells import finetuned, metric_of
from firth.study.cells.input_cells import model_path, task_data
from firth.study.engine.cell import Cell
from firth.study.engine.study import StudyRun
from firth.utils.config_fields import Doc
from firth.utils.errors import InputError

MIN_LABELS = 4


@dataclass(frozen=True, kw_only=True)
class FinetuningSettings:
    """Settings of all runs; by default those of the study of labels with 100 labels."""

    labels: Annotated[int, Doc("Labelled training examples.", min=MIN_LABELS)] = 100
    epochs: Annotated[float, Doc("Passes over the labelled examples.", min=0)] = 4.0
    min_steps: Annotated[
        int, Doc("Minimum number of optimizer steps of a fine-tuning run.", min=1)
    ] = 40
    max_steps: Annotated[
        int, Doc("Maximum number of optimizer steps of a fine-tuning run.", min=1)
    ] = 200
    batch_size: Annotated[int, Doc("Examples per optimizer step of fine-tuning.", min=1)] = 16
    test_size: Annotated[int, Doc("Maximum number of test examples.", min=1)] = 300


@dataclass(frozen=True, kw_only=True)
class FinetuningGrid:
    """The task, its data and the model of all runs."""

    run: StudyRun
    task: str
    data: Cell
    metric: str
    model: Path
    labels: int

    @property
    def steps(self) -> int:
        """The number of optimizer steps of each run."""
        settings: FinetuningSettings = self.run.settings
        steps = math.ceil(settings.epochs * self.labels / settings.batch_size)
        return min(max(steps, settings.min_steps), settings.max_steps)

    def options(self, strategy: str, **changed: Any) -> dict[str, Any]:
        """Return the arguments of `finetune`; equal runs of other studies are found again."""
        return {
            "strategy": strategy,
            "scratch": False,
            "batch_size": min(self.run.settings.batch_size, self.labels),
            "overrides": {"steps": self.steps},
            **changed,
        }

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a cell that fine-tunes with these options."""
        return {
            "model": self.model,
            "task": self.task,
            "data": self.data,
            "labels": self.labels,
            "options": options,
        }

    def cells(self, name: str, options: Mapping[str, Any]) -> list[Cell]:
        """Return one run for each seed."""
        return self.run.with_seeds(finetuned, name, **self.settings(options))


def finetuning_grid(run: StudyRun) -> FinetuningGrid:
    """Make the task files, and check that there are enough examples."""
    settings: FinetuningSettings = run.settings
    task = run.inputs.task or "classify"
    data = task_data(run.inputs, test_size=settings.test_size)
    (sizes,) = run.require(data)
    if sizes["train"] < MIN_LABELS:
        raise InputError(f"{sizes['train']} training examples are too few; give at least four.")
    if sizes["train"] < settings.labels:
        run.note(f"All {sizes['train']:,} training examples are used; there are no more.")
    if run.inputs.data is not None and run.inputs.test is None:
        run.note(
            f"{sizes['test']:,} examples were held out of {run.inputs.data.name} as test set, the "
            "same for all runs."
        )
    return FinetuningGrid(
        run=run,
        task=task,
        data=data,
        metric=metric_of(task, run.cache.files(data) / "test.jsonl"),
        model=model_path(run.inputs.models[0] if run.inputs.models else "stories-encoder"),
        labels=min(settings.labels, sizes["train"]),
    )
