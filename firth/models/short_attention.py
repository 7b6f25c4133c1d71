"""Self-attention of short sequences on a GPU: one kernel, which rotates queries and keys, too."""

from __future__ import annotations

import torch
from torch import Tensor

from firth.models.attention import PackedAttention
from firth.models.masks import Mask
from firth.models.positions import Angles
from firth.models.transformer_config import TransformerConfig
from firth.models.triton_attention import HEAD_DIMS, MAX_LENGTH, short_attention, tile_length
from firth.utils.devices import device_spec, has_tile_kernels


def has_short_attention(
    config: TransformerConfig, mask: Mask, window: int, *, training: bool
) -> bool:
    """Tell whether the kernel computes the self-attention of these layers for this mask.

    It has no dropout, no window and no relative positions, and all heads have their own keys.
    """
    # The length of a tile, not of the mask: a captured CUDA graph serves all batches of its shape.
    longest = tile_length(mask.max_length)
    others = config.qk_norm or config.relative_attention != "none" or config.bottleneck_size
    return (
        longest <= MAX_LENGTH
        and (not window or longest <= window + 1)
        and config.head_dim in HEAD_DIMS
        and config.num_kv_heads == config.num_heads
        and not (others or (training and config.attention_dropout))
        and has_tile_kernels(device_spec(mask.device))
    )


class ShortAttention(PackedAttention):
    """Attention of sequences of at most 128 tokens, from the packed queries, keys and values."""

    def __init__(self, mask: Mask) -> None:
        self.starts, self.causal = mask.starts, mask.pattern != "full"
        self.prefix = mask.prefix if mask.pattern == "prefix" else None
        self.tile = tile_length(mask.max_length)

    @property
    def positions(self) -> Tensor:
        """The positions whose angles the kernel needs."""
        return torch.arange(self.tile, device=self.starts.device)

    def attend_packed(
        self, qkv: Tensor, angles: Angles | None, num_heads: int, scale: float
    ) -> Tensor:
        cos, sin = angles or (None, None)
        inputs = qkv.contiguous(), cos, sin, self.starts, self.prefix
        out: Tensor = short_attention(*inputs, num_heads, self.tile, self.causal, scale)
        return out
