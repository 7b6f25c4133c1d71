"""Attention weights of chosen layers, from the queries and keys of an ordinary forward pass.

    H  heads     K  key-value heads     D  head dimension     Q  queries
    P  trained keys before the sequence (prefix tuning)     T  keys, with the P trained ones

The fast kernels never store attention weights. `AttentionRecorder` keeps the queries and keys of
some layers, which take little memory, and `RecordedAttention.weights` computes from them the
weights of one layer, of which there is only one copy: they are large. The forward pass is the usual
one, but for kernels that take packed queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from firth.models.attention import (
    AttentionBackend,
    AttentionParams,
    PackedAttention,
    PositionBias,
)
from firth.models.layers import AttentionContext
from firth.models.masks import Mask
from firth.models.transformer_config import TransformerConfig

BIAS_QUERIES = 256  # whose position biases are in memory


@dataclass(frozen=True)
class RecordedAttention:
    """The queries and keys of one layer, as its attention backend received them."""

    q: Tensor  # (Q, H, D) normalized and rotated, where the model does that
    k: Tensor  # (T - P, K, D)
    params: AttentionParams
    mask: Mask | None = None  # of self-attention; None: cross-attention, which sees all keys
    window: int = 0
    bias: PositionBias | None = None

    @torch.no_grad()
    def weights(self) -> Tensor:
        """Compute softmax(Q K^T * scale + bias), 0 where a query may not attend."""  # (H, Q, T)
        k, terms = self.k, self.params.score_terms
        if self.params.prefix is not None:
            k = torch.cat([self.params.prefix[0].to(k.dtype), k])
        prefix_length, group = len(k) - len(self.k), self.q.shape[1] // k.shape[1]
        dtype = torch.promote_types(self.q.dtype, torch.float32)
        keys = k.to(dtype).transpose(0, 1).repeat_interleave(group, dim=0)  # (H, T, D)
        scores = (self.q.to(dtype) * self.params.scale).transpose(0, 1) @ keys.transpose(1, 2)
        positions = torch.arange(-prefix_length, len(self.k), device=k.device)
        if self.bias is not None:
            queries = positions[prefix_length:].split(BIAS_QUERIES)
            for block, rows in zip(scores.split(BIAS_QUERIES, dim=1), queries, strict=True):
                block += self.bias(rows, positions)
        if terms is not None:  # trained keys have none
            rows = (part.transpose(0, 1)[None] for part in (self.q, self.k))  # (1, ., Q, D)
            scores += pad(terms(*rows)[0], (prefix_length, 0))
        allowed = None if self.mask is None else self.mask.rows.allowed(self.window, prefix_length)
        if allowed is not None:
            scores.masked_fill_(~allowed, float("-inf"))
        for head in scores:
            head.copy_(head.softmax(dim=-1))
        return scores.float()


@dataclass(frozen=True)
class _RecordingBackend:
    """Pass queries and keys on to a function, then attend as the backend does."""

    backend: AttentionBackend
    record: Callable[[Tensor, Tensor, AttentionParams], None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        self.record(q, k, params)
        return self.backend.attend(q, k, v, params)


@dataclass
class AttentionRecorder:
    """Keeps the queries and keys of some layers, counted from 0, in a pass over one sequence.

    The pass is without a key/value cache, which holds the keys of earlier tokens.
    """

    layers: Collection[int]
    self_attention: dict[int, RecordedAttention] = field(default_factory=dict)  # by layer
    cross: dict[int, RecordedAttention] = field(default_factory=dict)

    def wrap(
        self,
        contexts: Sequence[AttentionContext],
        mask: Mask,
        config: TransformerConfig,
        bias: PositionBias | None,
    ) -> list[AttentionContext]:
        """Return the contexts of all layers, with backends that record where a layer is chosen."""
        return [
            self._recording(
                i, context, mask, config.window if i in config.windowed_layers else 0, bias
            )
            if i in self.layers
            else context
            for i, context in enumerate(contexts)
        ]

    def _recording(
        self,
        layer: int,
        context: AttentionContext,
        mask: Mask,
        window: int,
        bias: PositionBias | None,
    ) -> AttentionContext:
        def self_attention(q: Tensor, k: Tensor, params: AttentionParams) -> None:
            self.self_attention[layer] = RecordedAttention(q, k, params, mask, window, bias)

        def cross(q: Tensor, k: Tensor, params: AttentionParams) -> None:
            self.cross[layer] = RecordedAttention(q, k, params)

        assert not isinstance(context.backend, PackedAttention)  # the stack chooses another
        context = replace(context, backend=_RecordingBackend(context.backend, self_attention))
        if context.cross_backend is not None:
            recording = _RecordingBackend(context.cross_backend, cross)
            context = replace(context, cross_backend=recording)
        return context
