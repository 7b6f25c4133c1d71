"""Low-rank adaptation, W + (alpha / rank) B A (Hu et al. 2021).

With rsLoRA (Kalajdzievski 2023) and DoRA (Liu et al. 2024). `reference.py` has the plain version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, pad

from firth.adapt.injection import InjectedModule, new_parameter, parameter_generator
from firth.adapt.target_modules import TargetModule, select_targets
from firth.models.heads import LanguageHead
from firth.models.transformer import Transformer
from firth.utils.devices import DeviceSpec, has_native_bf16
from firth.utils.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Options of LoRA."""

    rank: int = 8  # of the update of each matrix
    alpha: float = 16.0  # the update is scaled by alpha / rank
    targets: tuple[str, ...] = ("all",)  # projections to update; see docs/adapting.md
    dropout: float = 0.0  # on the input of the update
    rslora: bool = False  # scale by alpha / sqrt(rank)
    dora: bool = False  # train the norm of each row separately from its direction

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"The rank of lora must be at least 1, not {self.rank}.")
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(f"The dropout of lora must be in [0, 1), not {self.dropout}.")

    @property
    def scale(self) -> float:
        """The factor of the low-rank product."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def base_dtype(options: Any, precision: str, spec: DeviceSpec) -> torch.dtype:
    """Return the dtype of frozen matrices in training: bf16 for LoRA on a GPU that has bf16.

    Autocast would convert them in every step, so nothing that is computed changes. DoRA needs the
    norms of the fp32 rows.

    >>> base_dtype(LoraConfig(), "bf16", DeviceSpec(type="cuda", compute_capability=(8, 0)))
    torch.bfloat16
    """
    lora = isinstance(options, LoraConfig) and not options.dora
    half = spec.type == "cuda" and has_native_bf16(spec) and precision == "bf16"
    return torch.bfloat16 if lora and half else torch.float32


@contextmanager
def frozen_matrices(network: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Keep the frozen matrices of linear layers and heads in a dtype, then restore them.

    Token embeddings stay as they are, also where the output matrix is tied to them: positions are
    added to them in fp32, and a saved adapter records their dtype.
    """
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | LanguageHead)]
    weights = {id(layer.weight): layer.weight for layer in layers if layer.weight is not None}
    frozen = [one for one in weights.values() if not one.requires_grad and one.dtype != dtype]
    before = [weight.data.cpu() for weight in frozen]
    for weight in frozen:
        weight.data = weight.data.to(dtype)
    try:
        yield
    finally:
        for weight, data in zip(frozen, before, strict=True):
            weight.data = data.to(weight.device)


class LowRankPair(nn.Module):
    """The low-rank matrices A and B of one projection, and for DoRA the norms of its rows.

    At rank 16, a 768 x 768 matrix gets 24,576 trainable parameters, 4.17 % of its own.

    R  rank     I  input features     O  output features
    """

    def __init__(
        self, target: TargetModule, weight: Tensor, options: LoraConfig, seed: int
    ) -> None:
        super().__init__()
        rows, columns = target.shape
        self.options = options
        bound = columns**-0.5
        a = torch.empty(options.rank, columns)
        a.uniform_(-bound, bound, generator=parameter_generator(f"{target.path}.a", seed))
        self.a = new_parameter(a, weight)  # (R, I)
        self.b = new_parameter(torch.zeros(rows, options.rank), weight)  # (O, R), initially B A = 0
        self.lengths = new_parameter(_row_norms(self.sum(weight)), weight) if options.dora else None

    def forward(self, x: Tensor, out: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute the update of the projection's output `out` for the input x."""
        dropped = dropout(x, self.options.dropout, self.training).to(self.a.dtype)  # (…, I)
        update = linear(linear(dropped, self.a), self.b) * self.options.scale  # (…, O)
        if self.lengths is None:
            return update
        # The norm of the sum is treated as a constant (Liu et al. 2024, section 4.3).
        ratio = self.lengths / _row_norms(self.sum(weight)).detach()
        plain = out if bias is None else out - bias
        return (ratio - 1) * plain + ratio * update

    def sum(self, weight: Tensor) -> Tensor:
        """Add the low-rank update to the weight."""
        return weight.to(self.a.dtype) + self.options.scale * (self.b @ self.a)

    def merged(self, weight: Tensor) -> Tensor:
        """Return the merged weight, for DoRA with rescaled rows."""
        total = self.sum(weight)
        if self.lengths is None:
            return total
        return (self.lengths / _row_norms(total))[:, None] * total


def _row_norms(weight: Tensor) -> Tensor:
    """Return the norm of each row, never zero."""
    return weight.norm(dim=1).clamp(min=torch.finfo(weight.dtype).tiny)


class LoraLinear(InjectedModule):
    """Low-rank updates of a linear layer, one for each target inside a fused projection.

    R  rank     I  input features     O  output features     K  targets
    """

    def __init__(
        self, host: nn.Linear, targets: list[TargetModule], options: LoraConfig, seed: int
    ) -> None:
        super().__init__()
        self.options = options
        self.rows = {target.name: target.rows for target in targets}
        pairs = {
            target.name: LowRankPair(target, host.weight[target.rows], options, seed)
            for target in targets
        }
        self.pairs = nn.ModuleDict(pairs)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        if self.options.dora or (self.options.dropout and self.training):
            return self.add_each(host, x, out, plain)
        a, b = self.joined(out.shape[-1])
        if not torch.is_autocast_enabled(x.device.type):
            x = x.to(a.dtype)  # the update of a host in half precision is not rounded
        return out + linear(linear(x, a), b).to(out.dtype)  # (…, I) -> (…, K R) -> (…, O)

    def joined(self, size: int) -> tuple[Tensor, Tensor]:
        """Join the pairs to one low-rank product for all `size` rows: (K R, I) and (O, K R)."""
        pairs: list[Any] = [self.pairs[name] for name in self.rows]
        scale = self.adapter_weight * self.options.scale
        b = [
            pad(pair.b, (0, 0, rows.start, size - rows.stop))  # zero in the rows of other targets
            for pair, rows in zip(pairs, self.rows.values(), strict=True)
        ]
        return torch.cat([pair.a for pair in pairs]), scale * torch.cat(b, dim=1)

    def add_each(self, host: Any, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        """Add the update of each target on its own, as DoRA and dropout need it."""
        update = torch.zeros_like(out)
        for name, rows in self.rows.items():
            bias = None if host.bias is None else host.bias[rows]
            part = self.pairs[name](x, plain[..., rows], host.weight[rows], bias)
            update[..., rows] = (self.adapter_weight * part).to(out.dtype)
        return out + update

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        weight: Any = host.weight
        merged = weight.clone()
        for name, rows in self.rows.items():
            pair: Any = self.pairs[name]
            merged[rows] += self.adapter_weight * (pair.merged(weight[rows]) - weight[rows])
        return {"weight": merged}


def lora(network: Transformer, options: LoraConfig, seed: int) -> dict[str, InjectedModule]:
    """Create low-rank updates for the targeted projections, by the path of their host."""
    hosts: dict[str, list[TargetModule]] = {}
    for target in select_targets(network, options.targets):
        rows, columns = target.shape
        if options.rank > min(rows, columns):
            raise UsageError(
                f"The rank {options.rank} of lora is larger than the {rows} x {columns} matrix "
                f"of {target.path} allows."
            )
        hosts.setdefault(target.host, []).append(target)
    modules: dict[str, InjectedModule] = {}
    for host, targets in hosts.items():
        linear_layer = network.get_submodule(host)
        assert isinstance(linear_layer, nn.Linear)
        modules[host] = LoraLinear(linear_layer, targets, options, seed)
    return modules
