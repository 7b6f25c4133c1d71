"""Attention and the key/value cache in plain tensors, the truth for tests of the fast ones."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None
) -> Tensor:
    """Compute softmax(Q K^T * scale + mask) V; `mask` is -inf where a query may not attend.

    H query heads share K key-value heads in groups of H / K (Ainslie et al. 2023).
    """  # (Q, H, D), (T, K, D), (T, K, D), (H or 1, Q, T) -> (Q, H, D)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)  # heads first
    k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)  # (H, T, D)
    weights = (q @ k.transpose(1, 2) * scale + mask).softmax(dim=-1)  # (H, Q, T)
    return (weights @ v).transpose(0, 1)  # (Q, H, D)


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, cache: tuple[Tensor, Tensor], scale: float | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Attend from new tokens to the cached ones and, causally, to each other.

    The keys and values of the new tokens are appended to the cache, so that no step computes those
    of earlier tokens again.
    """  # (Q, H, D), (Q, K, D), (Q, K, D), 2 x (T, K, D) -> (Q, H, D), 2 x (T + Q, K, D)
    k, v = torch.cat([cache[0], k]), torch.cat([cache[1], v])
    positions = torch.arange(len(k))
    is_later = positions > positions[-len(q) :, None]  # (Q, T + Q)
    mask = torch.zeros(is_later.shape).masked_fill(is_later, float("-inf"))
    return dense_attention(q, k, v, mask[None], scale), (k, v)
