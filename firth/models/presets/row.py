"""The preset class, and how presets are built from the rows of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from firth.models.config import ModelConfig
from firth.models.transformer_config import TransformerConfig

Fields = dict[str, Any]  # of a TransformerConfig

# Fields that several families share.
NO_DROPOUT: Fields = dict(dropout=0.0, attention_dropout=0.0)
PRE_NORM: Fields = dict(norm_position="pre", embedding_norm=False)
RMS_NORM: Fields = dict(norm="rms", norm_bias=False, bias=False)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A published model: its config, and how it was pre-trained."""

    name: str
    config: ModelConfig
    heads: tuple[str, ...]  # of its pre-training objective
    objective: str  # a key of `firth.objectives.registry.OBJECTIVES`
    recipe: str  # its training hyperparameters; none for a model fitted without the training loop
    source: str  # the paper; the class of `transformers` with the same number of parameters
    parameters: int  # heads included; stored, so that a list of presets builds no models

    def count_parameters(self) -> int:
        """Count the parameters of the model, built without allocating memory."""
        import torch

        from firth.models.networks import build_network
        from firth.models.transformer import count_parameters

        with torch.device("meta"):
            return count_parameters(build_network(self.config, self.heads))

    @property
    def is_fitted(self) -> bool:
        """Whether the model is fitted without the training loop, to the tokenizer's words."""
        return not self.recipe

    def values(self) -> dict[str, Any]:
        """Return the columns of `firth presets`; what a model does not have is None."""
        config = self.config
        columns = (
            "name architecture num_layers hidden_size num_heads parameters max_positions "
            "vocab_size objective recipe source"
        ).split()
        values = {name: getattr(self, name, getattr(config, name, None)) for name in columns}
        values["num_layers"] = config.num_layers + config.num_decoder_layers
        if not self.is_fitted:
            return values
        unknown = dict.fromkeys(("parameters", "max_positions", "vocab_size", "recipe"))
        return {name: value or None for name, value in (values | unknown).items()}


def size(
    layers: int, hidden: int, heads: int, ffn: int, parameters: int = 0, **more: Any
) -> Fields:
    """Return the fields in which members of a family differ."""
    sizes = dict(num_layers=layers, hidden_size=hidden, num_heads=heads, ffn_size=ffn)
    return dict(parameters=parameters, **sizes, **more)


def family(
    common: Fields,
    rows: Mapping[str, Fields],
    *,
    objective: str,
    recipe: str,
    source: str,
    heads: tuple[str, ...] = ("language",),
) -> dict[str, Preset]:
    """Build presets that share all fields but those of their rows."""
    how: Fields = dict(heads=heads, objective=objective, recipe=recipe, source=source)
    presets: dict[str, Preset] = {}
    for name, row in rows.items():
        fields = common | row
        count = fields.pop("parameters")
        config = TransformerConfig(**fields)
        presets[name] = Preset(name=name, config=config, parameters=count, **how)
    return presets
