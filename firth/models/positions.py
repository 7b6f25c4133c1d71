"""How a network knows where a token stands.

N  tokens     D  width of a head     H  heads     Q, L  places of queries and keys
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

PART = 1 << 20  # choices whose gradients are added up at a time

Angles = tuple[Tensor, Tensor]  # cosines and sines, each (N, 1, D / 2)


def sinusoids(places: Tensor, width: int) -> Tensor:
    """Sines and cosines of falling frequency, in turn (Vaswani et al. 2017, section 3.5).

    >>> sinusoids(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    steps = torch.arange(0, width, 2, device=places.device)
    angles = places[:, None] * torch.exp(steps * (-math.log(10_000.0) / width))  # (N, width / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]


def rotary_frequencies(head_width: int, theta: float, device: torch.device) -> Tensor:
    """By how much each pair of numbers is turned from one place to the next."""  # (D / 2,)
    steps = torch.arange(0, head_width, 2, dtype=torch.float, device=device)
    return 1.0 / (theta ** (steps / head_width))


def rotary_angles(places: Tensor, head_width: int, theta: float) -> Angles:
    """The angles by which queries and keys are turned (Su et al. 2021)."""
    frequencies = rotary_frequencies(head_width, theta, places.device)
    angles = (places[:, None].float() * frequencies)[:, None]  # (N, 1, D / 2)
    return angles.cos(), angles.sin()


def turn(x: Tensor, angles: Angles) -> Tensor:
    """Turn the pairs (x_i, x_{i + D/2}) of each head by the angles of its place."""  # (N, H, D)
    cos, sin = angles
    wide = x if x.dtype == torch.float64 else x.float()
    first, second = wide.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class RelativeBias(nn.Module):
    """T5's: a learned number for each head and each bucket of distances (Raffel et al. 2020).

    Half of the buckets hold one distance each; the others grow, up to `distance`.
    """

    def __init__(self, buckets: int, distance: int, heads: int, both_ways: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.both_ways = buckets, distance, both_ways
        self.weight = nn.Parameter(torch.empty(buckets, heads))

    def bucket(self, relative: Tensor) -> Tensor:
        """The bucket of a distance from query to key."""
        buckets, base = self.buckets, torch.zeros_like(relative)
        if self.both_ways:  # the upper half is for keys behind the query
            buckets //= 2
            base = (relative > 0).long() * buckets
            relative = relative.abs()
        else:
            relative = (-relative).clamp(min=0)
        exact = buckets // 2
        grown = torch.log(relative.clamp(min=1).float() / exact) / math.log(self.distance / exact)
        far = (exact + (grown * (buckets - exact)).long()).clamp(max=buckets - 1)
        return base + torch.where(relative < exact, relative, far)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(…, Q) and (…, L) places -> (…, H, Q, L)."""
        bucket = self.bucket(keys.unsqueeze(-2) - queries.unsqueeze(-1))
        chosen: Tensor = _Chosen.apply(self.weight, bucket)  # type: ignore[no-untyped-call]
        return chosen.movedim(-1, -3).contiguous()  # fast kernels ask for that


class _Chosen(torch.autograd.Function):
    """Rows of a small table, each many times: the gradient is a product, torch would add them up
    one after the other."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.rows = len(table)
        return table[chosen]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [chosen], gradient = ctx.saved_tensors, gradients[0].flatten(0, -2)
        rows = torch.arange(ctx.rows, device=chosen.device)[:, None]
        found = gradient.new_zeros(ctx.rows, gradient.shape[1])
        for some, part in zip(chosen.flatten().split(PART), gradient.split(PART), strict=True):
            found += (some == rows).to(part.dtype) @ part
        return found, None


class Disentangled(nn.Module):
    """DeBERTa's: content looks at distances and distances at content (He et al. 2021).

    One table of distances serves all layers; each layer reads it with its own projections.
    """

    def __init__(self, width: int, buckets: int, distance: int, eps: float) -> None:
        super().__init__()
        self.buckets, self.distance = buckets, distance
        self.table = nn.Embedding(2 * buckets, width)
        self.norm = nn.LayerNorm(width, eps=eps)

    def bucket(self, relative: Tensor) -> Tensor:
        """Distances up to half the buckets as they are, longer ones by their logarithm."""
        middle = self.buckets // 2
        size = relative.abs().clamp(min=1)
        near = (relative < middle) & (relative > -middle)
        whole = torch.tensor((self.distance - 1) / middle).log()  # in float32, as they round it
        scaled = torch.log(size / middle) / whole * (middle - 1)
        return torch.where(near, relative, (torch.ceil(scaled) + middle) * relative.sign()).long()

    def terms(self, q: Tensor, k: Tensor, qk: nn.Linear, scale: float) -> Tensor:
        """What distances add to the scores of a layer; `qk` has its projections first.

        (G, H, L, D) queries and keys -> (G, H, L, L).
        """
        heads, length, width = q.shape[1:]
        read = qk(self.norm(self.table.weight))[:, : 2 * heads * width]  # (2B, 2HD)
        ahead, back = read.unflatten(-1, (2, heads, width)).permute(1, 2, 3, 0).unbind()
        place, last = torch.arange(length, device=q.device), 2 * self.buckets - 1
        bucket = self.bucket(place[:, None] - place).expand(*q.shape[:2], -1, -1)
        to_place = (q @ back).gather(-1, (self.buckets + bucket).clamp(0, last))
        from_place = (k @ ahead).gather(-1, (self.buckets - bucket).clamp(0, last))
        return (to_place + from_place.transpose(-1, -2)) * scale
