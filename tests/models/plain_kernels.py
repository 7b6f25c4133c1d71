"""What the attention kernels of GPUs compute, in plain torch and differentiable."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from firth.models.attention import AttentionParams, VarlenAttention
from firth.models.masks import Mask
from firth.models.positions import apply_rotary
from firth.models.reference import dense_attention


def short_attention(
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    starts: Tensor,
    prefix: Tensor | None,
    heads: int,
    tile: int,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute attention of packed sequences: (N, 3 H D) queries, keys and values -> (N, H D)."""
    lengths = starts.diff().tolist()
    assert max(lengths) <= tile
    both = lengths if not causal else [0] * len(lengths) if prefix is None else prefix.tolist()
    mask = Mask(lengths, prefix=both, device=qkv.device)
    q, k, v = qkv.unflatten(1, (3, heads, -1)).unbind(1)  # (N, H, D)
    if cos is not None and sin is not None:
        angles = cos[mask.positions], sin[mask.positions]
        q, k = apply_rotary(q, angles), apply_rotary(k, angles)
    scores = torch.zeros_like(mask.visible(), dtype=q.dtype)
    scores.masked_fill_(~mask.visible(), float("-inf"))
    return dense_attention(q, k, v, scores[None], scale).flatten(1)


def bias_attention(
    qkv: Tensor, bias: Tensor, log2_bias: Tensor, length: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention of sequences of one length with a bias: (N, 3 H D) -> (N, H D)."""
    q, k, v = qkv.view(-1, length, 3, len(bias), qkv.shape[1] // (3 * len(bias))).permute(
        2, 0, 3, 1, 4
    )  # (G, H, L, D) each
    scores = scale * q @ k.mT + bias[:, :length, :length]
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).flatten(0, 1), scores.logsumexp(-1)


def varlen_attention(
    self: VarlenAttention, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams
) -> Tensor:
    """Compute what variable-length kernels compute, sequence by sequence."""
    starts, parts = self.starts[0].tolist(), []
    assert starts[-1] == len(q)
    for begin, end in itertools.pairwise(starts):
        assert end - begin <= self.max_lengths[0]
        rows = [part[begin:end].transpose(0, 1) for part in (q, k, v)]
        rows[1:] = [part.repeat_interleave(len(rows[0]) // len(part), 0) for part in rows[1:]]
        place = torch.arange(end - begin)
        apart = place[:, None] - place
        seen = apart >= 0 if self.causal else torch.ones_like(apart, dtype=torch.bool)
        if self.window[0] is not None:
            seen &= (apart <= self.window[0]) & (-apart <= self.window[1])
        scores = (rows[0] @ rows[1].mT * params.scale).masked_fill(~seen, float("-inf"))
        parts.append((scores.softmax(-1) @ rows[2]).transpose(0, 1))
    return torch.cat(parts)
