"""Bottleneck adapters after the sub-layers of each block (Houlsby et al. 2019).

Pfeiffer et al. (2021) found that one per block, after the feed-forward layer, works as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from firth.adapt.injection import InjectedModule, block_modules, new_parameter, parameter_generator
from firth.models.activations import ACTIVATIONS
from firth.models.layers import Attention, CrossAttention, FeedForward
from firth.models.transformer import Transformer
from firth.utils.errors import UsageError

INIT_STD = 0.01  # of the down-projection (Houlsby et al. 2019, section 3.6)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Options of bottleneck adapters."""

    kind: Literal["houlsby", "pfeiffer"] = "houlsby"  # after every sub-layer, or once per block
    reduction: int = 16  # hidden size of the network divided by that of the bottleneck
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"

    def __post_init__(self) -> None:
        if self.reduction < 1:
            raise UsageError(f"The reduction of adapters must be at least 1, not {self.reduction}.")


class Bottleneck(InjectedModule):
    """Compute x + up(activation(down(x)))."""

    def __init__(
        self, hidden_size: int, options: AdapterConfig, path: str, seed: int, like: Tensor
    ) -> None:
        super().__init__()
        size = max(1, hidden_size // options.reduction)
        self.activation = ACTIVATIONS[options.activation]
        down = torch.randn(size, hidden_size, generator=parameter_generator(f"{path}.down", seed))
        self.down = new_parameter(down * INIT_STD, like)
        self.down_bias = new_parameter(torch.zeros(size), like)
        self.up = new_parameter(torch.zeros(hidden_size, size), like)  # the identity at first
        self.up_bias = new_parameter(torch.zeros(hidden_size), like)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        inner = self.activation(linear(out.to(self.down.dtype), self.down, self.down_bias))
        return out + linear(inner, self.up, self.up_bias).to(out.dtype)


def adapters(network: Transformer, options: AdapterConfig, seed: int) -> dict[str, InjectedModule]:
    """Create a bottleneck after each sub-layer, or after each feed-forward layer."""

    def is_adapted(path: str, module: nn.Module) -> bool:
        if options.kind == "pfeiffer":
            return path.endswith(".feed_forward")
        return isinstance(module, Attention | CrossAttention | FeedForward)

    def bottleneck(path: str, module: Any) -> Bottleneck:
        like = (module.down if isinstance(module, FeedForward) else module.output).weight
        return Bottleneck(len(like), options, path, seed, like)

    modules = block_modules(network)
    return {path: bottleneck(path, module) for path, module in modules if is_adapted(path, module)}
