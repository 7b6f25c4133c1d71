"""Bottlenecks between the layers: narrow down, think, add (Houlsby et al. 2019).

Pfeiffer et al. (2021) found that one in each block, behind the feed-forward layer, does as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth.adapt.changes import Change, blocks_of, draws, parameter
from firth.errors import Misuse
from firth.models.layers import ACTIVATIONS, Attention, CrossAttention, FeedForward
from firth.models.transformer import Transformer

SPREAD = 0.01  # of the first weights (Houlsby et al. 2019, section 3.6)


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Where the bottlenecks are, and how narrow."""

    kind: Literal["houlsby", "pfeiffer"] = "houlsby"  # behind every sub-layer, or once in a block
    reduction: int = 16  # how many times narrower than the network
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"  # inside

    def __post_init__(self) -> None:
        if self.reduction < 1:
            raise Misuse(f"The reduction of adapters must be at least 1, not {self.reduction}.")


class Bottleneck(Change):
    """Down, through the activation, up again, and added to what came."""

    def __init__(self, width: int, options: Adapters, path: str, seed: int, like: Tensor) -> None:
        super().__init__()
        narrow = max(1, width // options.reduction)
        self.activation = ACTIVATIONS[options.activation]
        first = torch.randn(narrow, width, generator=draws(f"{path}.down", seed))
        self.down = parameter(first * SPREAD, like)
        self.down_bias = parameter(torch.zeros(narrow), like)
        self.up = parameter(torch.zeros(width, narrow), like)  # nothing is added at first
        self.up_bias = parameter(torch.zeros(width), like)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        inner = self.activation(linear(out.to(self.down.dtype), self.down, self.down_bias))
        return out + linear(inner, self.up, self.up_bias).to(out.dtype)


def adapters(network: Transformer, options: Adapters, seed: int) -> dict[str, Change]:
    """A bottleneck behind each sub-layer, or behind the last of each block."""

    def has_one(path: str, module: nn.Module) -> bool:
        if options.kind == "pfeiffer":
            return path.endswith(".feed_forward")
        return isinstance(module, Attention | CrossAttention | FeedForward)

    def made(path: str, module: Any) -> Bottleneck:
        like = (module.down if isinstance(module, FeedForward) else module.output).weight
        return Bottleneck(len(like), options, path, seed, like)

    found = blocks_of(network)
    return {path: made(path, module) for path, module in found if has_one(path, module)}
