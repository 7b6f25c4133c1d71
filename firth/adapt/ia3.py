"""IA3: rescale keys, values and feed-forward activations by learned vectors (Liu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.injection import InjectedModule, new_parameter
from firth.adapt.target_modules import TargetModule, select_targets
from firth.models.transformer import Transformer
from firth.utils.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class IA3Config:
    """Options of IA3."""

    targets: tuple[str, ...] = ("key", "value")  # projections whose outputs are rescaled
    inputs: tuple[str, ...] = ("down",)  # projections whose inputs are rescaled


class Rescaling(InjectedModule):
    """One trainable factor per output feature, or per input feature, of a projection."""

    def __init__(
        self, host: nn.Linear, outputs: list[TargetModule], inputs: list[TargetModule]
    ) -> None:
        super().__init__()
        self.rows = {target.name: target.rows for target in outputs}
        self.out = nn.ParameterDict(
            {
                target.name: new_parameter(torch.ones(target.shape[0]), host.weight)
                for target in outputs
            }
        )
        ones = torch.ones(host.in_features)
        self.into = new_parameter(ones, host.weight) if inputs else None

    def factors(self, size: int, like: Tensor) -> Tensor:
        """Return the factors of all output features; 1 for those that are not trained."""
        factors = like.new_ones(size)
        for name, rows in self.rows.items():
            factors[rows] = self.out[name].to(like.dtype)
        return factors

    def before(self, host: nn.Module, x: Tensor) -> Tensor:
        return x if self.into is None else x * self.into.to(x.dtype)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        return out * self.factors(out.shape[-1], out) if self.rows else out

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        weight: Any = host.weight
        bias: Any = host.bias
        factors = self.factors(len(weight), weight)
        columns = 1.0 if self.into is None else self.into.to(weight.dtype)
        merged = {"weight": weight * factors[:, None] * columns}
        return merged if bias is None else {**merged, "bias": bias * factors}


def ia3(network: Transformer, options: IA3Config, seed: int) -> dict[str, InjectedModule]:
    """Create the factors of the targeted projections, by the path of their host."""
    outputs = select_targets(network, options.targets)
    inputs = select_targets(network, options.inputs)
    for target in inputs:
        if target.rows.stop - target.rows.start < network.get_submodule(target.host).out_features:
            raise UsageError(
                f"The input of {target.path} is shared with other projections and cannot be "
                "rescaled separately; choose another projection."
            )
    modules: dict[str, InjectedModule] = {}
    for host in dict.fromkeys(target.host for target in (*outputs, *inputs)):
        linear = network.get_submodule(host)
        assert isinstance(linear, nn.Linear)
        modules[host] = Rescaling(
            linear,
            [target for target in outputs if target.host == host],
            [target for target in inputs if target.host == host],
        )
    return modules
