"""Position embeddings: sinusoidal, rotary, T5's relative bias, DeBERTa's disentangled attention.

N  tokens     D  head dimension     H  heads     Q, L  query and key positions
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firth.models.transformer_config import RopeScaling, TransformerConfig

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


@dataclass(frozen=True)
class Rotary:
    """The rotary embeddings of a layer: base of the frequencies and their scaling."""

    head_dim: int
    theta: float
    scaling: RopeScaling | None = None

    @classmethod
    def of_layer(cls, config: TransformerConfig, windowed: bool) -> Rotary:
        """Return the rotary embeddings of layers with or without a sliding window."""
        scaled = config.scale_local_rope or not windowed
        theta = config.local_rope_theta if windowed else config.rope_theta
        return cls(config.head_dim, theta, config.rope_scaling if scaled else None)

    @property
    def attention_factor(self) -> float:
        """The factor of queries and keys."""
        return self.scaling.attention_factor if self.scaling is not None else 1.0

    def frequencies(self, device: torch.device) -> Tensor:
        """Compute the rotation angle per position of each pair of dimensions."""  # (D / 2,)
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float, device=device)
        frequencies = 1.0 / (self.theta ** (steps / self.head_dim))
        if self.scaling is None:
            return frequencies
        return SCALINGS[self.scaling.kind](frequencies, self, self.scaling)


def _linear(frequencies: Tensor, rotary: Rotary, scaling: RopeScaling) -> Tensor:
    """Interpolate positions (Chen et al. 2023)."""
    return frequencies / scaling.factor


def _llama3(frequencies: Tensor, rotary: Rotary, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies, keep high ones, and interpolate between them (Llama 3.1)."""
    rotations = scaling.original_positions / (2 * math.pi / frequencies)
    kept = ((rotations - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies


def _yarn(frequencies: Tensor, rotary: Rotary, scaling: RopeScaling) -> Tensor:
    """Interpolate by dimension, not by frequency (YaRN; Peng et al. 2023, section 3.2)."""
    dim, per_dimension = rotary.head_dim, 2 * math.log(rotary.theta)
    low, high = (
        dim * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / per_dimension
        for rotations in (scaling.fast, scaling.slow)
    )
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ranks = torch.arange(dim // 2, dtype=torch.float, device=frequencies.device)
    kept = 1 - ((ranks - low) / ((high - low) or 0.001)).clamp(0, 1)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}


def rotary_angles(positions: Tensor, rotary: Rotary) -> Angles:
    """Compute cosines and sines of the rotary angles (Su et al. 2021)."""
    frequencies, factor = rotary.frequencies(positions.device), rotary.attention_factor
    angles = (positions[:, None].float() * frequencies)[:, None]  # (N, 1, D / 2)
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


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
