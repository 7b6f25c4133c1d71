"""Self-attention with T5's relative position bias on a GPU: flash attention for equal lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from firth.models.attention import PackedAttention, has_equal_lengths
from firth.models.masks import Mask
from firth.models.positions import Angles, RelativeBias
from firth.models.transformer_config import TransformerConfig
from firth.models.triton_bias_attention import (
    HEAD_DIMS,
    bias_attention,
    padded_length,
    prepare_bias,
)
from firth.utils.devices import device_spec, has_tile_kernels

MAX_LENGTH = 1024  # the backward pass stores the gradients of all scores


def has_bias_attention(
    config: TransformerConfig, mask: Mask, window: int, *, training: bool
) -> bool:
    """Tell whether the kernels compute the self-attention of these layers for this mask.

    They have no dropout, no window, no rotation, and all heads have their own keys.
    """
    others = config.qk_norm or config.position_embedding == "rotary" or config.bottleneck_size
    return (
        config.relative_attention == "bias"
        and mask.pattern != "prefix"
        and 0 < mask.max_length <= MAX_LENGTH
        and has_equal_lengths(mask)
        and not window
        and config.head_dim in HEAD_DIMS
        and config.num_kv_heads == config.num_heads
        and not (others or (training and config.attention_dropout))
        and has_tile_kernels(device_spec(mask.device))
    )


class BiasAttention(PackedAttention):
    """Attention of sequences of one length, with a bias that is computed once for all layers."""

    def __init__(self, mask: Mask, relative: RelativeBias, dtype: torch.dtype) -> None:
        """`dtype`: of the queries, keys and values."""
        self.length, self.causal = mask.max_length, mask.pattern == "causal"
        positions = torch.arange(padded_length(self.length), device=mask.device)
        self.bias: Tensor = relative(positions, positions)
        self.log2_bias = prepare_bias(self.bias, self.length, self.causal, dtype)

    def attend_packed(
        self, qkv: Tensor, angles: Angles | None, num_heads: int, scale: float
    ) -> Tensor:
        qkv, log2_bias = qkv.contiguous(), self.log2_bias.to(qkv.dtype)
        out, _ = bias_attention(qkv, self.bias, log2_bias, self.length, self.causal, scale)
        return out
