"""Self-attention of short sequences on a GPU: one kernel, which rotates queries and keys, too."""

from __future__ import annotations

import torch
from torch import Tensor

from firth.models.attention import PackedAttention
from firth.models.masks import Mask
from firth.models.positions import Angles
from firth.models.triton_attention import MAX_LENGTH, short_attention, tile_length


def fits_short_attention(mask: Mask, window: int) -> bool:
    """Tell whether the sequences fit into a tile, and a window, if any, spans it.

    >>> fits_short_attention(Mask([100]), 0), fits_short_attention(Mask([100]), 64)
    (True, False)
    """
    # The length of a tile, not of the mask: a captured CUDA graph serves all batches of its shape.
    longest = tile_length(mask.max_length)
    return longest <= MAX_LENGTH and (not window or longest <= window + 1)


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
