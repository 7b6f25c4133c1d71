"""Position embeddings: sinusoidal, rotary, T5's relative bias, DeBERTa's disentangled attention.

N  tokens     D  head dimension     H  heads     Q, L  query and key positions
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

CHUNK = 1 << 20  # lookups whose gradients are summed at a time

Angles = tuple[Tensor, Tensor]  # cosines and sines, each (N, 1, D / 2)


def sinusoidal_embedding(positions: Tensor, size: int) -> Tensor:
    """Compute interleaved sines and cosines (Vaswani et al. 2017, section 3.5).

    >>> sinusoidal_embedding(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """  # (N,) -> (N, size)
    steps = torch.arange(0, size, 2, device=positions.device)
    angles = positions[:, None] * torch.exp(steps * (-math.log(10_000.0) / size))  # (N, size / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :size]


def rotary_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Compute the rotation angle per position of each pair of dimensions."""  # (D / 2,)
    steps = torch.arange(0, head_dim, 2, dtype=torch.float, device=device)
    return 1.0 / (theta ** (steps / head_dim))


def rotary_angles(positions: Tensor, head_dim: int, theta: float) -> Angles:
    """Compute cosines and sines of the rotary angles (Su et al. 2021)."""
    frequencies = rotary_frequencies(head_dim, theta, positions.device)
    angles = (positions[:, None].float() * frequencies)[:, None]  # (N, 1, D / 2)
    return angles.cos(), angles.sin()


def apply_rotary(x: Tensor, angles: Angles) -> Tensor:
    """Rotate the pairs (x_i, x_{i + D/2}) of each head by the angles of its position."""
    cos, sin = angles  # (N, 1, D / 2)
    # the angles are at least float32
    first, second = (x if x.dtype == torch.float64 else x.float()).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class RelativeBias(nn.Module):
    """T5's relative position bias: one number per bucket and head (Raffel et al. 2020).

    Half of the buckets hold one distance each, the others logarithmic ranges up to `max_distance`.
    """

    def __init__(self, buckets: int, max_distance: int, heads: int, bidirectional: bool) -> None:
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.empty(buckets, heads))

    def bucket(self, relative: Tensor) -> Tensor:
        """Return the bucket of each distance (key position - query position)."""
        buckets, base = self.buckets, torch.zeros_like(relative)
        if self.bidirectional:  # the upper half is for keys after the query
            buckets //= 2
            base = (relative > 0).long() * buckets
            relative = relative.abs()
        else:
            relative = (-relative).clamp(min=0)
        exact = buckets // 2
        scaled = torch.log(relative.clamp(min=1).float() / exact)
        scaled = scaled / math.log(self.max_distance / exact)
        far = (exact + (scaled * (buckets - exact)).long()).clamp(max=buckets - 1)
        return base + torch.where(relative < exact, relative, far)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Look up the bias: (…, Q) and (…, L) positions -> (…, H, Q, L)."""
        bucket = self.bucket(keys.unsqueeze(-2) - queries.unsqueeze(-1))
        bias: Tensor = _Lookup.apply(self.weight, bucket)  # type: ignore[no-untyped-call]
        return bias.movedim(-1, -3).contiguous()  # required by the fused kernels


class _Lookup(torch.autograd.Function):
    """Look up rows of a small table. Its gradient is a matrix product with one-hot rows; torch
    would add the repeated rows one after another."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.rows = len(table)
        return table[indices]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [indices], gradient = ctx.saved_tensors, gradients[0].flatten(0, -2)
        rows = torch.arange(ctx.rows, device=indices.device)[:, None]
        total = gradient.new_zeros(ctx.rows, gradient.shape[1])
        for some, part in zip(indices.flatten().split(CHUNK), gradient.split(CHUNK), strict=True):
            total += (some == rows).to(part.dtype) @ part
        return total, None


class DisentangledBias(nn.Module):
    """DeBERTa's content-to-position and position-to-content attention (He et al. 2021).

    All layers share one table of distance embeddings, each with its own projections.
    """

    def __init__(self, hidden_size: int, buckets: int, max_distance: int, eps: float) -> None:
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Embedding(2 * buckets, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)

    def bucket(self, relative: Tensor) -> Tensor:
        """Return the signed bucket: distances up to half the buckets, then logarithmic ranges."""
        middle = self.buckets // 2
        size = relative.abs().clamp(min=1)
        near = (relative < middle) & (relative > -middle)
        # in float32, so that it rounds as the published implementation does
        log_range = torch.tensor((self.max_distance - 1) / middle).log()
        scaled = torch.log(size / middle) / log_range * (middle - 1)
        return torch.where(near, relative, (torch.ceil(scaled) + middle) * relative.sign()).long()

    def terms(self, q: Tensor, k: Tensor, qk: nn.Linear, scale: float) -> Tensor:
        """Compute the terms added to attention scores; `qk` starts with a layer's projections.

        (G, H, L, D) queries and keys -> (G, H, L, L).
        """
        heads, length, head_dim = q.shape[1:]
        projected = qk(self.norm(self.table.weight))[:, : 2 * heads * head_dim]  # (2B, 2HD)
        parts = projected.unflatten(-1, (2, heads, head_dim)).permute(1, 2, 3, 0)  # (2, H, D, 2B)
        position_queries, position_keys = parts.unbind()
        positions, last = torch.arange(length, device=q.device), 2 * self.buckets - 1
        bucket = self.bucket(positions[:, None] - positions).expand(*q.shape[:2], -1, -1)
        content_to_position = (q @ position_keys).gather(-1, (self.buckets + bucket).clamp(0, last))
        position_to_content = (k @ position_queries).gather(
            -1, (self.buckets - bucket).clamp(0, last)
        )
        return (content_to_position + position_to_content.transpose(-1, -2)) * scale
