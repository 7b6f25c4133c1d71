"""Cross-validation of a fine-tuning run whose training set is too small to hold examples out."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

from firth.tasks.dataset import TaskDataset, split_fold
from firth.tasks.task_trainer import TaskTrainer


def cross_validate(
    trainer: TaskTrainer, dataset: TaskDataset, train: Callable[[TaskDataset, str], TaskTrainer]
) -> dict[str, Any]:
    """Predict each training example with a model that `train` trained on the other folds.

    The predictions become those of the trainer's dev examples; return their loss and metrics. No
    checkpoint is selected, so the metrics are not optimistic.
    """
    found: dict[int, tuple[Any, Any]] = {}
    losses = []
    for number, fold in enumerate(dataset.folds, 1):
        other = train(split_fold(dataset, fold), f"fold {number} of {len(dataset.folds)}")
        losses.append(other.validate()["loss"])
        found |= dict(zip(fold, zip(other.dev_items, other.outputs(), strict=True), strict=True))
    trainer.dev = dataset.train
    trainer.dev_items = [found[i][0] for i in range(len(found))]
    trainer.dev_outputs = [found[i][1] for i in range(len(found))]
    metrics = trainer.task.metrics(trainer.dev, trainer.answers(), trainer.metadata)
    values = {name: metric.value for name, metric in metrics.items()}
    return {"loss": fmean(losses), **values}
