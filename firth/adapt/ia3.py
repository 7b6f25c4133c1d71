"""IA3: keys, values and what is inside the feed-forward layers, stretched (Liu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.changes import Change, parameter
from firth.adapt.targets import Piece, chosen
from firth.errors import Misuse
from firth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Ia3:
    """What is stretched."""

    targets: tuple[str, ...] = ("key", "value")  # projections: what comes out of them
    inputs: tuple[str, ...] = ("down",)  # projections: what goes into them


class Stretch(Change):
    """One factor for each number that comes out of a projection, or goes into it."""

    def __init__(self, host: nn.Linear, out: list[Piece], into: list[Piece]) -> None:
        super().__init__()
        self.rows = {piece.name: piece.rows for piece in out}
        ones = torch.ones(host.in_features)
        self.out = nn.ParameterDict(
            {piece.name: parameter(torch.ones(piece.shape[0]), host.weight) for piece in out}
        )
        self.into = parameter(ones, host.weight) if into else None

    def factors(self, size: int, like: Tensor) -> Tensor:
        """The factors of all rows; of those that are not learned, one."""
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


def ia3(network: Transformer, options: Ia3, seed: int) -> dict[str, Change]:
    """Factors for the chosen projections."""
    out, into = chosen(network, options.targets), chosen(network, options.inputs)
    for piece in into:
        if piece.rows.stop - piece.rows.start < network.get_submodule(piece.host).out_features:
            raise Misuse(f"What goes into {piece.path} goes into others as well: take another.")
    made: dict[str, Change] = {}
    for host in dict.fromkeys(piece.host for piece in (*out, *into)):
        module = network.get_submodule(host)
        assert isinstance(module, nn.Linear)
        mine = [[piece for piece in found if piece.host == host] for found in (out, into)]
        made[host] = Stretch(module, *mine)
    return made
