"""The result of a pre-training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firth.model import Model
from firth.training.fitting import FittedRunConfig
from firth.training.pretrain_config import PretrainRunConfig
from firth.utils.notebook import HtmlRepr


@dataclass(frozen=True)
class PretrainResult(HtmlRepr):
    """A finished pre-training run."""

    path: Path
    model: Model
    config: PretrainRunConfig | FittedRunConfig
    steps: int
    tokens: int
    seconds: float
    loss: float | None  # of the last validation
    family: str  # in whose format the model is saved
    source_losses: dict[str, float]  # of the last validation, for each named source
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        loss = "no validation" if self.loss is None else f"validation loss {self.loss:.3f}"
        steps = [f"{self.steps:,} steps"] * bool(self.steps)
        parts = [self.config.objective, *steps, f"{self.tokens:,} tokens", loss]
        return f"PretrainResult({self.path}, {', '.join(parts)})"

    def values(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return {
            "out": str(self.path),
            "preset": self.config.preset,
            "objective": self.config.objective,
            "parameters": self.model.num_parameters,
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": self.loss,
            "family": self.family,
            "source_losses": self.source_losses,
            "notes": self.notes,
        }
