"""Keyword arguments of `pretrain` and `finetune` that set single fields of the run's config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from firth.objectives.registry import OBJECTIVES
from firth.utils.config_fields import flag
from firth.utils.errors import UsageError


def merge_options(
    overrides: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Add the options that are not None to the overrides; an option given both ways is an error.

    >>> merge_options({"schedule": "cosine"}, {"learning_rate": 1e-3, "warmup": None})
    {'schedule': 'cosine', 'learning_rate': '0.001'}
    >>> merge_options({"warmup": "0.1"}, {"warmup": 0.2})
    Traceback (most recent call last):
    firth.utils.errors.UsageError: warmup is given twice: give --warmup or --set warmup=…, not both.
    """
    merged = dict(overrides or {})
    for name, value in options.items():
        if value is None:
            continue
        if name in merged:
            raise UsageError(
                f"{name} is given twice: give {flag(name)} or --set {name}=…, not both."
            )
        merged[name] = str(value)  # parsed like the text of --set
    return merged


def check_masking(objective: str) -> None:
    """Raise a usage error if an objective has no masking probability.

    >>> check_masking("masked")
    >>> check_masking("span-corruption")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: --mask-prob does not apply to the objective span-corruption: \
set its fraction of corrupted tokens with --set objective.noise_density=….
    """
    parameters = inspect.signature(OBJECTIVES[objective].predicted_fraction).parameters
    if "mask_prob" in parameters:
        return
    if "noise_density" in parameters:
        advice = "set its fraction of corrupted tokens with --set objective.noise_density=…"
    else:
        advice = "it masks no tokens"
    raise UsageError(f"--mask-prob does not apply to the objective {objective}: {advice}.")
