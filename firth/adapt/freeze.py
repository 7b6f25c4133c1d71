"""Full fine-tuning, freezing of lower blocks, probing, and gradual unfreezing.

Gradual unfreezing trains one more block per epoch, from the top (Howard & Ruder 2018, section 3.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from firth.adapt.injection import base_parameters
from firth.models.language_model import LanguageNetwork
from firth.utils.errors import UsageError

FINAL_NORM = re.compile(r"(encoder|decoder)\.final_norm\.")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """A strategy without options."""


@dataclass(frozen=True, kw_only=True)
class FreezeConfig:
    """Options of freezing."""

    blocks: int  # number of frozen blocks from the bottom; the embeddings are always frozen


@dataclass(frozen=True, kw_only=True)
class ProbeConfig:
    """Options of probing."""

    # whose hidden states the head reads: 0 (embeddings) to last, -1 is the last; mix: all, weighted
    layer: str = "last"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"last|mix|-?[0-9]{1,9}", self.layer):
            raise UsageError(
                f"The option layer of probe must be an integer, last or mix, not {self.layer!r}."
            )


def layer_groups(network: LanguageNetwork) -> list[list[str]]:
    """Group the parameters below the heads by layer, from the last block to the embeddings.

    The final norm belongs to the last block. Decoder blocks come before encoder blocks.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> for names in layer_groups(Transformer(preset("bert-tiny").config, ["language"])):
    ...     print(len(names), names[0])
    12 encoder.blocks.1.attention.qkv.weight
    12 encoder.blocks.0.attention.qkv.weight
    5 tokens.weight
    """
    layers: dict[tuple[str, int], list[str]] = {}
    embeddings: list[str] = []
    fixed = ("heads.", *network.fixed_parameters)
    names = [name for name in base_parameters(network) if not name.startswith(fixed)]
    for name in names:
        if found := re.match(r"(encoder|decoder)\.blocks\.(\d+)\.", name):
            layers.setdefault((found[1], int(found[2])), []).append(name)
        elif not FINAL_NORM.match(name):
            embeddings.append(name)
    for name in names:
        if FINAL_NORM.match(name):
            side = name.partition(".")[0]
            layers[max(key for key in layers if key[0] == side)].append(name)
    upwards = sorted(layers, key=lambda key: (key[0] == "decoder", key[1]))
    return [*(layers[key] for key in reversed(upwards)), embeddings]


def unfreeze_from(network: LanguageNetwork, top_blocks: int, heads: Iterable[str] = ()) -> None:
    """Train only these heads and the top blocks; one more than all blocks trains everything.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> unfreeze_from(network, 1)
    >>> {name.split(".")[2] for name, p in network.named_parameters() if p.requires_grad}
    {'1'}
    """
    unfrozen = {name for group in layer_groups(network)[:top_blocks] for name in group}
    set_trainable(network, unfrozen, heads)


def set_trainable(
    network: LanguageNetwork, names: Iterable[str], heads: Iterable[str] = ()
) -> None:
    """Make only these parameters, and those of these heads, require gradients."""
    trainable, prefixes = set(names), tuple(f"heads.{head}." for head in heads)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in trainable or name.startswith(prefixes))


def full(network: LanguageNetwork, options: NoOptions) -> list[str]:
    """Return all parameters below the heads."""
    return [name for group in layer_groups(network) for name in group]


def freeze(network: LanguageNetwork, options: FreezeConfig) -> list[str]:
    """Return the parameters above the frozen blocks."""
    layers = layer_groups(network)[:-1]
    if not 0 <= options.blocks <= len(layers):
        shared = ", shared by all layers" if network.config.share_layers else ""
        raise UsageError(
            f"freeze:{options.blocks} is not possible: the network has "
            f"{len(layers)} block{'s' if len(layers) > 1 else ''}{shared}."
        )
    return [name for group in layers[: len(layers) - options.blocks] for name in group]


def freeze_all(network: LanguageNetwork, options: NoOptions | ProbeConfig) -> list[str]:
    """Return nothing: all parameters below the heads are frozen, in gradual unfreezing at first."""
    return []
