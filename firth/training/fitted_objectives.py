"""The table of models that are fitted without the training loop, by the objective of a preset."""

from __future__ import annotations

from firth.training.fitting import FittedObjective

FITTED: dict[str, FittedObjective] = {}
