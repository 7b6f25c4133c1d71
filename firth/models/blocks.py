"""Transformer blocks: plain, with an encoder's weights, and with a bottleneck."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from firth.models.layers import (
    Attention,
    AttentionContext,
    CrossAttention,
    FeedForward,
    Residual,
    make_norm,
)
from firth.models.transformer_config import TransformerConfig


class Block(nn.Module):
    """Self-attention, cross-attention if there is an encoder, and the feed-forward layer."""

    def __init__(self, config: TransformerConfig, *, memory_size: int, skip_pre_norm: bool) -> None:
        """`memory_size`: the encoder's hidden size; 0: no cross-attention."""
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = Residual(config, config.hidden_size, skip_pre_norm=skip_pre_norm)
        self.cross = CrossAttention(config, memory_size) if memory_size else None
        self.cross_norm = Residual(config, config.hidden_size) if memory_size else None
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = Residual(config, config.hidden_size)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        x = self.attention_norm(x, lambda y: self.attention(y, context))
        if self.cross is not None and self.cross_norm is not None:
            x = self.cross_norm(x, partial(self.cross, context=context))
        return self.feed_forward_norm(x, self.feed_forward)


class SharedBlock(nn.Module):
    """A decoder's block with the self-attention and feed-forward layer of an encoder's block.

    The norms of these two layers are shared too. Cross-attention and its norm are its own
    (Raffel et al. 2020, section 3.2.2).
    """

    def __init__(self, config: TransformerConfig, memory_size: int, block: nn.Module) -> None:
        super().__init__()
        self.cross = CrossAttention(config, memory_size)
        self.cross_norm = Residual(config, config.hidden_size)
        # In a tuple, not a submodule: each parameter has one name, that of the encoder.
        self._encoder_block = (block,)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        (block,) = self._encoder_block
        assert isinstance(block, Block)
        x = block.attention_norm(x, lambda y: block.attention(y, context))
        x = self.cross_norm(x, partial(self.cross, context=context))
        return block.feed_forward_norm(x, block.feed_forward)


class BottleneckBlock(nn.Module):
    """MobileBERT's block: a smaller size inside, several feed-forward layers (Sun et al. 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.bottleneck_size
        self.down = nn.Linear(hidden, inner)
        self.down_norm = make_norm(config, inner)
        self.look = nn.Linear(hidden, inner)  # the input of queries and keys
        self.look_norm = make_norm(config, inner)
        self.attention = Attention(config, value_input_size=hidden)
        self.attention_norm = Residual(config, inner)
        more = range(config.num_feed_forwards - 1)
        self.feed_forwards = nn.ModuleList(FeedForward(config) for _ in more)
        self.feed_forward_norms = nn.ModuleList(Residual(config, inner) for _ in more)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = Residual(config, inner)
        self.up = nn.Linear(inner, hidden)
        self.up_norm = Residual(config, hidden)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        query_input = self.look_norm(self.look(x))
        y = self.down_norm(self.down(x))
        y = self.attention_norm(y, lambda _: self.attention(query_input, context, value_input=x))
        for norm, feed_forward in zip(self.feed_forward_norms, self.feed_forwards, strict=True):
            y = norm(y, feed_forward)
        y = self.feed_forward_norm(y, self.feed_forward)
        return self.up_norm(x, lambda _: self.up(y))
