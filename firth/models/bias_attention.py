"""Self-attention with T5's relative position bias on a GPU: flash attention for equal lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from firth.models.attention import PackedAttention, has_equal_lengths
from firth.models.masks import Mask
from firth.models.positions import Angles, RelativeBias
from firth.models.triton_bias_attention import bias_attention, padded_length, prepare_bias

MIN_LENGTH, MAX_LENGTH = 65, 1024  # the gradients of all scores are stored, padded to whole tiles


def fits_bias_attention(mask: Mask) -> bool:
    """Tell whether the kernels compute attention of these sequences: of one length, on a GPU."""
    fits = MIN_LENGTH <= mask.max_length <= MAX_LENGTH
    return fits and mask.pattern != "prefix" and has_equal_lengths(mask)


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
