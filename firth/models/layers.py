"""The parts of a Transformer block: norms, projections, attention, the feed-forward layer.

    N  tokens of the batch     W  hidden size     H  heads     K  key-value heads     D  head dim
    M  tokens of the encoder's batch              R  the encoder's hidden size

Query, key and value projections are one matrix, as are the two up projections of a gated layer: one
matrix product instead of several. `FusedLinear.splits` has the rows of each part; weight name
mappings, LoRA and Muon use it. Projections are always called as modules, so that the hooks of
adapters (`firth.adapt`) run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from firth.models.activations import ACTIVATIONS
from firth.models.attention import AttentionBackend, AttentionParams, PackedAttention
from firth.models.config import ModelConfig
from firth.models.kv_cache import CacheWrite, KeyValues
from firth.models.positions import Angles, DisentangledBias, apply_rotary
from firth.models.transformer_config import TransformerConfig
from firth.models.triton_activations import fast_gated_activation
from firth.models.triton_norm import add_norm, fits_add_norm


class GemmaRMSNorm(nn.Module):
    """Gemma's RMSNorm: scales by 1 + weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        weight = 1.0 + self.weight.float()
        return rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)


class AffineNorm(nn.Module):
    """MobileBERT's norm: a scale and a shift, no statistics (Sun et al. 2020, section 3.4)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def make_norm(config: ModelConfig, size: int) -> nn.Module:
    """Build the normalization layer named by `config.norm`."""
    if config.norm == "layer":
        return nn.LayerNorm(size, eps=config.norm_eps, bias=config.norm_bias)
    if config.norm == "rms":
        return nn.RMSNorm(size, eps=config.norm_eps)
    if config.norm == "rms-plus-one":
        return GemmaRMSNorm(size, config.norm_eps)
    return AffineNorm(size)


class Residual(nn.Module):
    """Residual connection `x + f(x)`, with a norm before f, after the sum, or around f."""

    def __init__(
        self, config: TransformerConfig, size: int, *, skip_pre_norm: bool = False
    ) -> None:
        super().__init__()

        def norm(*norm_positions: str) -> nn.Module:
            used = config.norm_position in norm_positions
            return make_norm(config, size) if used else nn.Identity()

        self.before = nn.Identity() if skip_pre_norm else norm("pre", "both")
        self.after = norm("both")
        self.outer = norm("post")
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        y = self.dropout(self.after(f(self.before(x))))
        if fits_add_norm(x, self.outer):
            return add_norm(x, y, self.outer)
        return self.outer(x + y).to(x.dtype)  # under autocast a norm returns float32


class FusedLinear(nn.Linear):
    """Several projections of the same input as one matrix, stacked by output rows."""

    def __init__(self, inputs: int, splits: tuple[int, ...], bias: bool) -> None:
        super().__init__(inputs, sum(splits), bias=bias)
        self.splits = splits

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Apply the projection and split its output."""
        return self(x).split(self.splits, dim=-1)


@dataclass
class AttentionContext:
    """The inputs of attention in one layer besides its hidden states."""

    backend: AttentionBackend | PackedAttention
    rope_angles: Angles | None = None
    distances: DisentangledBias | None = None
    cache_write: CacheWrite | None = None
    memory: Tensor | None = None  # (M, R) the encoder's output
    cross_backend: AttentionBackend | None = None
    prefix: KeyValues | None = None  # trained keys and values before every sequence (prefix tuning)
    cross_prefix: KeyValues | None = None  # the same before the encoder's output


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, config: TransformerConfig, value_input_size: int = 0) -> None:
        """`value_input_size`: values are projected from another input of this size (MobileBERT)."""
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim, self.scale = config.head_dim, config.scale
        self.dropout = config.attention_dropout
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        bias = config.bias if config.qkv_bias is None else config.qkv_bias
        self.value = nn.Linear(value_input_size, keys, bias=bias) if value_input_size else None
        splits = (queries, keys) if value_input_size else (queries, keys, keys)
        self.qkv = FusedLinear(config.block_size, splits, bias)
        self.output = nn.Linear(queries, config.block_size, bias=config.bias)
        self.query_norm = make_norm(config, self.head_dim) if config.qk_norm else None
        self.key_norm = make_norm(config, self.head_dim) if config.qk_norm else None

    def forward(
        self, x: Tensor, context: AttentionContext, value_input: Tensor | None = None
    ) -> Tensor:
        if isinstance(context.backend, PackedAttention):
            angles = context.rope_angles
            out = context.backend.attend_packed(self.qkv(x), angles, self.num_heads, self.scale)
            return self.output(out)
        q, k, *rest = self.qkv.parts(x)
        v = self.value(value_input) if self.value is not None else rest[0]
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))  # (N, ., D)
        if self.query_norm is not None and self.key_norm is not None:
            q, k = self.query_norm(q), self.key_norm(k)
        if context.rope_angles is not None:
            rotated = apply_rotary(torch.cat([q, k], dim=1), context.rope_angles)
            q, k = rotated.split([self.num_heads, self.num_kv_heads], dim=1)
        if context.cache_write is not None:
            k, v = context.cache_write.write(k, v)
        terms = None
        if context.distances is not None:
            terms = partial(context.distances.terms, qk=self.qkv, scale=self.scale)
        dropout = self.dropout if self.training else 0.0
        params = AttentionParams(self.scale, dropout, terms, context.prefix)
        out = context.backend.attend(q, k, v, params)  # (N, H, D)
        return self.output(out.flatten(1))


class CrossAttention(nn.Module):
    """Attention from decoder tokens to the encoder's output."""

    def __init__(self, config: TransformerConfig, memory_size: int) -> None:
        """`memory_size`: the encoder's hidden size."""
        super().__init__()
        self.head_dim, self.scale = config.head_dim, config.scale
        self.dropout = config.attention_dropout
        queries, keys = config.num_heads * self.head_dim, config.num_kv_heads * self.head_dim
        self.query = nn.Linear(config.hidden_size, queries, bias=config.bias)
        self.kv = FusedLinear(memory_size, (keys, keys), config.bias)
        self.output = nn.Linear(queries, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        assert context.cross_backend is not None
        q = self.query(x).unflatten(-1, (-1, self.head_dim))  # (N, H, D)
        k, v = self._memory_keys_values(context)
        dropout = self.dropout if self.training else 0.0
        params = AttentionParams(self.scale, dropout, prefix=context.cross_prefix)
        out = context.cross_backend.attend(q, k, v, params)
        return self.output(out.flatten(1))

    def _memory_keys_values(self, context: AttentionContext) -> tuple[Tensor, Tensor]:
        """Project the encoder's output, once for a whole generation."""  # (M, K, D) each
        cache = context.cache_write.layer if context.cache_write is not None else None
        if cache is not None and cache.memory is not None:
            return cache.memory
        assert context.memory is not None
        k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.kv.parts(context.memory))
        if cache is not None:
            cache.memory = k, v
        return k, v


class FeedForward(nn.Module):
    """Up projection, activation (optionally gated), down projection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        splits = (config.ffn_size, config.ffn_size) if config.gated else (config.ffn_size,)
        self.up = FusedLinear(config.block_size, splits, config.bias)
        self.down = nn.Linear(config.ffn_size, config.block_size, bias=config.bias)
        self.activation, self.gated = config.activation, config.gated

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        activate = ACTIVATIONS[self.activation]
        x = fast_gated_activation(x, self.activation) if self.gated else activate(x)
        return self.down(x)
