"""Which of the network's own parameters learn: all, the upper ones, none, or more and more.

Freezing the lower blocks keeps what is general; ULMFiT (Howard & Ruder 2018, section 3.3) thaws one
group of layers after the other, from the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from firth.adapt.changes import base_parameters
from firth.errors import Misuse
from firth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Full:
    """There is nothing to choose: everything learns."""


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """How much stays as it is."""

    blocks: int  # from the bottom; the embeddings stay in any case


@dataclass(frozen=True, kw_only=True)
class Probe:
    """There is nothing to choose: only the head learns."""


@dataclass(frozen=True, kw_only=True)
class Gradual:
    """There is nothing to choose: the head learns first, then one block more at a time."""


def groups(network: Transformer) -> list[list[str]]:
    """The parameters below the heads by layer, from the last block down to the embeddings.

    A stack's last norm belongs to its last block. A decoder's blocks lie above its encoder's.

    >>> from firth.models.presets import preset
    >>> for names in groups(Transformer(preset("bert-tiny").config, ["language"])):
    ...     print(len(names), names[0])
    12 encoder.blocks.1.attention.qkv.weight
    12 encoder.blocks.0.attention.qkv.weight
    5 tokens.weight
    """
    layers: dict[tuple[str, int], list[str]] = {}
    embeddings: list[str] = []
    names = [name for name in base_parameters(network) if not name.startswith("heads.")]
    for name in names:
        if found := re.match(r"(encoder|decoder)\.blocks\.(\d+)\.", name):
            layers.setdefault((found[1], int(found[2])), []).append(name)
        elif ".final_norm." not in name:
            embeddings.append(name)
    for name in names:
        if ".final_norm." in name:
            side = name.partition(".")[0]
            layers[max(key for key in layers if key[0] == side)].append(name)
    upwards = sorted(layers, key=lambda key: (key[0] == "decoder", key[1]))
    return [*(layers[key] for key in reversed(upwards)), embeddings]


def unfreeze_from(network: Transformer, top_blocks: int, heads: Iterable[str] = ()) -> None:
    """Let some heads and the uppermost blocks learn; with all blocks and one more, everything.

    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config, ["language"])
    >>> unfreeze_from(network, 1)
    >>> {name.split(".")[2] for name, p in network.named_parameters() if p.requires_grad}
    {'1'}
    """
    thawed = {name for group in groups(network)[:top_blocks] for name in group}
    let_learn(network, thawed, heads)


def let_learn(network: Transformer, names: Iterable[str], heads: Iterable[str] = ()) -> None:
    """Let just these parameters, and those of these heads, learn."""
    wanted, begins = set(names), tuple(f"heads.{head}." for head in heads)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in wanted or name.startswith(begins))


def full(network: Transformer, options: Full) -> list[str]:
    """Everything below the heads."""
    return [name for group in groups(network) for name in group]


def freeze(network: Transformer, options: Freeze) -> list[str]:
    """What lies above the lowest blocks."""
    layers = groups(network)[:-1]
    if not 0 <= options.blocks <= len(layers):
        shared = ", used again in every layer" if network.config.shared else ""
        raise Misuse(
            f"freeze:{options.blocks} is beyond the depth of the network: it has "
            f"{len(layers)} block{'s' if len(layers) > 1 else ''}{shared}."
        )
    return [name for group in layers[: len(layers) - options.blocks] for name in group]


def probe(network: Transformer, options: Probe) -> list[str]:
    """Nothing below the heads."""
    return []


def gradual(network: Transformer, options: Gradual) -> list[str]:
    """Nothing below the heads, to begin with: `unfreeze_from` opens more."""
    return []
