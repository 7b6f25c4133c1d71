"""The preset class, and how presets are built from the rows of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from firth.models.config import ModelConfig
from firth.models.presets.sizes import PARAMETERS

Fields = dict[str, Any]  # of a ModelConfig


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A published model: its config, and how it was pre-trained."""

    name: str
    config: ModelConfig
    heads: tuple[str, ...]  # of its pre-training objective
    objective: str  # a key of `firth.objectives.registry.OBJECTIVES`
    recipe: str  # its training hyperparameters
    source: str  # the paper; the class of `transformers` with the same number of parameters

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, heads included."""
        return PARAMETERS.get(self.name) or self.count_parameters()

    def count_parameters(self) -> int:
        """Count the parameters of the model, built without allocating memory."""
        import torch

        from firth.models.transformer import Transformer, count_parameters

        with torch.device("meta"):
            return count_parameters(Transformer(self.config, self.heads))

    def values(self) -> dict[str, Any]:
        """Return the columns of `firth presets`."""
        config = self.config
        layers = config.num_layers + config.num_decoder_layers
        return {
            "name": self.name,
            "architecture": config.architecture,
            "num_layers": layers,
            "hidden_size": config.hidden_size,
            "num_heads": config.num_heads,
            "parameters": self.parameters,
            "max_positions": config.max_positions,
            "vocab_size": config.vocab_size,
            "objective": self.objective,
            "recipe": self.recipe,
            "source": self.source,
        }


def size(layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> Fields:
    """Return the size fields in which members of a family differ, and any others."""
    return dict(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=ffn, **more)


def family(
    common: Fields,
    rows: Mapping[str, Fields],
    *,
    heads: tuple[str, ...] = ("language",),
    objective: str,
    recipe: str,
    source: str,
) -> dict[str, Preset]:
    """Build presets that share all fields but those of their rows."""
    return {
        name: Preset(
            name=name,
            config=ModelConfig(**(common | row)),
            heads=heads,
            objective=objective,
            recipe=recipe,
            source=source,
        )
        for name, row in rows.items()
    }
