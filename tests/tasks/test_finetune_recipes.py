"""Recipes of fine-tuning, resolved for a model, a number of examples and a device."""

from __future__ import annotations

from typing import Any

import pytest

from firth.models.presets import preset
from firth.tasks.finetune_recipes import RECIPES, finetune_training_config
from firth.utils.devices import H100


@pytest.mark.parametrize(
    ("recipe", "model", "examples", "compiled"),
    [
        ("topic", "bert-mini", 5_500, False),  # compilation would take most of its time
        ("topic", "bert-base", 5_500, False),
        ("sentiment", "bert-large", 400_000, True),
        ("translation", "t5-base", 200_000, True),
        ("topic", "awd-lstm", 400_000, False),  # it has no blocks
    ],
)
def test_long_runs_are_compiled(recipe: str, model: str, examples: int, compiled: bool) -> None:
    row, config = RECIPES[recipe], preset(model).config
    settings = finetune_training_config(row, config, examples, device=H100, overrides={})
    assert settings.compile == str(compiled).lower()
    assert settings.steps * settings.batch_size >= examples


@pytest.mark.parametrize(
    ("strategy", "compiled"), [("full", True), ("lora:rank=4", False), ("bitfit", False)]
)
def test_frozen_matrices_need_fewer_flops(strategy: str, compiled: bool) -> None:
    """A step of LoRA takes two thirds of the time, so compilation pays off in longer runs."""
    row, config = RECIPES["sentiment"], preset("bert-large").config
    given: dict[str, Any] = {"device": H100, "overrides": {}, "strategy": strategy}
    assert finetune_training_config(row, config, 50_000, **given).compile == str(compiled).lower()
    assert finetune_training_config(row, config, 70_000, **given).compile == "true"
