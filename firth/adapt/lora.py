"""Low-rank adaptation: a product of two thin matrices beside each chosen one (Hu et al. 2021).

With rsLoRA (Kalajdzievski 2023) and DoRA (Liu et al. 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from firth.adapt.changes import Change, draws, parameter
from firth.adapt.targets import Piece, chosen
from firth.errors import Misuse
from firth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Lora:
    """How much is added, and to what."""

    rank: int = 8  # of what is added to a matrix
    alpha: float = 16.0  # it is multiplied by alpha / rank
    targets: tuple[str, ...] = ("all",)  # the projections it is added to: docs/adapting.md says why
    dropout: float = 0.0  # of what goes into it
    rslora: bool = False  # multiply by alpha / sqrt(rank)
    dora: bool = False  # learn the length of each row apart from its direction

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise Misuse(f"The rank of lora must be at least 1, not {self.rank}.")
        if not 0.0 <= self.dropout < 1.0:
            raise Misuse(f"dropout is a probability below 1, which {self.dropout} is not.")

    @property
    def scale(self) -> float:
        """What the product of the two matrices is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def added(rows: int, columns: int, rank: int) -> int:
    """How many parameters are trained in place of those of a matrix.

    >>> added(768, 768, rank=16), 768 * 768
    (24576, 589824)
    >>> f"{24576 / 589824:.2%}"
    '4.17%'
    """
    return rank * (rows + columns)


class Pair(nn.Module):
    """Two thin matrices, and for DoRA the lengths of the rows of what they are added to."""

    def __init__(self, piece: Piece, weight: Tensor, options: Lora, seed: int) -> None:
        super().__init__()
        rows, columns = piece.shape
        self.options = options
        bound = columns**-0.5
        first = torch.empty(options.rank, columns)
        first.uniform_(-bound, bound, generator=draws(f"{piece.path}.a", seed))
        self.a = parameter(first, weight)  # (R, columns)
        self.b = parameter(torch.zeros(rows, options.rank), weight)  # nothing is added at first
        self.lengths = parameter(_lengths(self.sum(weight)), weight) if options.dora else None

    def forward(self, x: Tensor, out: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What is added to what the matrix made of x."""
        low = dropout(x, self.options.dropout, self.training).to(self.a.dtype)
        change = linear(linear(low, self.a), self.b) * self.options.scale
        if self.lengths is None:
            return change
        # The length of the sum is taken as a constant (Liu et al. 2024, section 4.3).
        ratio = self.lengths / _lengths(self.sum(weight)).detach()
        plain = out if bias is None else out - bias
        return (ratio - 1) * plain + ratio * change

    def sum(self, weight: Tensor) -> Tensor:
        """The matrix with what is added to it."""
        return weight.to(self.a.dtype) + self.options.scale * (self.b @ self.a)

    def merged(self, weight: Tensor) -> Tensor:
        """The one matrix that does what both do."""
        whole = self.sum(weight)
        return whole if self.lengths is None else (self.lengths / _lengths(whole))[:, None] * whole


def _lengths(weight: Tensor) -> Tensor:
    """The length of each row, never zero."""
    return weight.norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)


class LowRank(Change):
    """What is added to one projection, piece by piece."""

    def __init__(self, host: nn.Linear, pieces: list[Piece], options: Lora, seed: int) -> None:
        super().__init__()
        self.rows = {piece.name: piece.rows for piece in pieces}
        pairs = {piece.name: Pair(piece, piece.of(host.weight), options, seed) for piece in pieces}
        self.pairs = nn.ModuleDict(pairs)

    def after(self, host: Any, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        change = torch.zeros_like(out)
        for name, rows in self.rows.items():
            bias = None if host.bias is None else host.bias[rows]
            one = self.pairs[name](x, plain[..., rows], host.weight[rows], bias)
            change[..., rows] = (self.share * one).to(out.dtype)
        return out + change

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        weight: Any = host.weight
        merged = weight.clone()
        for name, rows in self.rows.items():
            pair: Any = self.pairs[name]
            merged[rows] += self.share * (pair.merged(weight[rows]) - weight[rows])
        return {"weight": merged}


def lora(network: Transformer, options: Lora, seed: int) -> dict[str, Change]:
    """Low-rank matrices for the chosen projections."""
    hosts: dict[str, list[Piece]] = {}
    for piece in chosen(network, options.targets):
        if options.rank > min(piece.shape):
            raise Misuse(
                f"A rank of {options.rank} is more than the {piece.shape[0]} x {piece.shape[1]} "
                f"matrix of {piece.path} can have."
            )
        hosts.setdefault(piece.host, []).append(piece)
    made: dict[str, Change] = {}
    for host, pieces in hosts.items():
        module = network.get_submodule(host)
        assert isinstance(module, nn.Linear)
        made[host] = LowRank(module, pieces, options, seed)
    return made
