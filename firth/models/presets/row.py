"""What a preset is, and how a family's table of sizes becomes presets."""

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
    """A published network: its shape, and how it was pre-trained."""

    name: str
    config: ModelConfig
    heads: tuple[str, ...]  # that its pre-training needs
    objective: str  # a row of `firth.objectives.table.OBJECTIVES`
    recipe: str  # the settings it was trained with
    source: str  # the paper; the class of `transformers` with as many parameters

    @cached_property
    def parameters(self) -> int:
        """How many numbers are trained, heads included; a row without a size is counted."""
        return PARAMETERS.get(self.name) or self.counted()

    def counted(self) -> int:
        """The same of the network itself; nothing is allocated to count them."""
        import torch

        from firth.models.transformer import Transformer, count_parameters

        with torch.device("meta"):
            return count_parameters(Transformer(self.config, self.heads))

    def values(self) -> dict[str, Any]:
        """What a list of presets shows."""
        config = self.config
        layers = config.layers + config.decoder_layers
        return {
            "name": self.name,
            "architecture": config.architecture,
            "layers": layers,
            "width": config.width,
            "heads": config.heads,
            "parameters": self.parameters,
            "context": config.context,
            "vocabulary": config.vocabulary,
            "objective": self.objective,
            "recipe": self.recipe,
            "source": self.source,
        }


def size(layers: int, width: int, heads: int, inner: int, **more: Any) -> Fields:
    """The columns in which members of a family differ, and whatever else one differs in."""
    return dict(layers=layers, width=width, heads=heads, inner=inner, **more)


def family(
    common: Fields,
    rows: Mapping[str, Fields],
    *,
    heads: tuple[str, ...] = ("language",),
    objective: str,
    recipe: str,
    source: str,
) -> dict[str, Preset]:
    """Presets that share everything but what their rows say."""
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
