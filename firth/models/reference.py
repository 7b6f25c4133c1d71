"""The formula of attention, as the truth that the fast backends are tested against."""

from __future__ import annotations

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
