"""Dropout is on in every training step and off in predictions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from firth.jobs.finetuning import FinetuneResult
from firth.models.language_model import LossTerm
from firth.objectives.batch import Batch
from firth.training.losses import TrainingModule


def test_dropout_is_on_in_training_only(
    tune: Callable[..., FinetuneResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, modes = TrainingModule.forward, []

    def watched(trainee: TrainingModule, batch: Batch) -> dict[str, LossTerm]:
        if torch.is_grad_enabled():
            modes.append({module.training for module in trainee.network.modules()})
        return plain(trainee, batch)

    monkeypatch.setattr(TrainingModule, "forward", watched)
    tuned = tune("encoder", "classify", "sentiment")
    assert modes == [{True}] * tuned.steps  # the first validation comes after half of them
    assert not any(module.training for module in tuned.model.network.modules())
