"""Attention backends over packed batches; `reference.py` has the plain formula.

    N  tokens of the batch     H  heads     K  key-value heads     D  head dimension
    G  padded rows     L  positions in a row     T  positions in the cache

For each forward pass a mask is turned into one backend, whose `attend` all layers call (on a GPU,
`short_attention.py` and `bias_attention.py` have others, of the packed projections):

    EqualLengthAttention   sequences of one length on a GPU: its fastest kernels
    VarlenAttention        variable-length flash attention on a GPU, in half precision
    PaddedAttention        padded rows of similar length: torch's fused causal kernel where
                           possible, an explicit mask for padding, a window, a prefix or a bias
    PaddedCrossAttention   the same, from decoder rows to encoder rows
    CachedAttention        new tokens against the key/value cache

torch.compile traces the first two and those of packed projections; the others are excluded
(`exclude_from_compile`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from firth.models.kv_cache import KeyValues, KVCache
from firth.models.masks import Mask, PaddedGroup, is_visible, select_rows
from firth.models.positions import Angles
from firth.utils.devices import assumes_gpu, device_spec, has_varlen_attention

LENGTH_MULTIPLE = 2  # the fused kernels for padded rows need lengths that are multiples of this
FLASH_ARGUMENTS = (
    "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask "
    "scale window_size_left window_size_right"
).split()

# Query and key positions (…, Q), (…, L) -> (…, H, Q, L), added to attention scores: T5's bias.
PositionBias = Callable[[Tensor, Tensor], Tensor]
# Queries (G, H, L, D) and keys (G, K, L, D) -> (G, H, L, L), added to scores: DeBERTa's terms.
ScoreTerms = Callable[[Tensor, Tensor], Tensor]


class AttentionParams(NamedTuple):
    """The attention parameters of one layer."""

    scale: float  # of the attention scores
    dropout: float = 0.0
    score_terms: ScoreTerms | None = None  # added to the attention scores
    prefix: KeyValues | None = None  # trained keys and values before every sequence


class AttentionBackend(Protocol):
    """An implementation of attention for one mask."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        """Compute attention: (N, H, D) queries, (…, K, D) keys and values -> (N, H, D)."""


class PackedAttention:
    """A backend that takes queries, keys and values as one matrix, as they were projected."""

    def attend_packed(
        self, qkv: Tensor, angles: Angles | None, num_heads: int, scale: float
    ) -> Tensor:
        """Compute attention: (N, 3 H D) -> (N, H D)."""
        raise NotImplementedError


def attention_backend(
    mask: Mask,
    *,
    window: int,
    bias: PositionBias | None,
    varlen: bool,
    has_score_terms: bool = False,
    dense: bool = False,
    prefix_length: int = 0,
) -> AttentionBackend:
    """Choose the fastest backend for self-attention under a mask.

    `varlen`: variable-length kernels are available; `dense`: force explicit masks;
    `prefix_length`: trained key positions before each sequence.
    """
    fused = not (has_score_terms or dense or prefix_length) and mask.pattern != "prefix"
    if fused and not window and has_equal_lengths(mask):
        return EqualLengthAttention(mask, mask, bias)
    if fused and varlen and bias is None:
        return VarlenAttention(mask, mask, window)
    return PaddedAttention(mask, window, bias, dense, prefix_length)


def cross_attention_backend(
    queries: Mask, memory: Mask, *, varlen: bool, prefix_length: int = 0
) -> AttentionBackend:
    """Choose the fastest backend for attention from decoder tokens to the encoder's output."""
    if not prefix_length and has_equal_lengths(queries) and has_equal_lengths(memory):
        return EqualLengthAttention(queries, memory)
    if not prefix_length and varlen:
        return VarlenAttention(queries, memory, 0)
    return PaddedCrossAttention(queries, memory, prefix_length)


def has_equal_lengths(mask: Mask) -> bool:
    """Tell whether all sequences, on a GPU, have one length that the fused kernels take."""
    return (
        mask.device.type == "cuda"
        and mask.rows.equal_lengths
        and mask.max_length % LENGTH_MULTIPLE == 0
    )


def has_varlen_kernels(device: torch.device, head_dim: int) -> bool:
    """Tell whether torch and a device have variable-length kernels for this head dimension."""
    supported = head_dim % 8 == 0 and head_dim <= 256
    return supported and has_varlen_attention(device_spec(device)) and has_flash_attention_op()


@cache
def has_flash_attention_op() -> bool:
    """Tell whether torch's private op for variable-length attention has the known arguments.

    The public `torch.nn.attention.varlen` calls the same kernel and has no dropout. A forward pass
    of BERT-base over 6,000 tokens takes 1.25 times as long with it on an H200, and 1.84 times over
    padded rows, which are used where the op is missing.
    """
    op = getattr(torch.ops.aten, "_flash_attention_forward", None)
    schema = getattr(getattr(op, "default", None), "_schema", None)
    names = [argument.name for argument in getattr(schema, "arguments", ())]
    return names[: len(FLASH_ARGUMENTS)] == FLASH_ARGUMENTS


class EqualLengthAttention:
    """Fused attention for sequences of one length, which need no padding."""

    def __init__(self, queries: Mask, keys: Mask, bias: PositionBias | None = None) -> None:
        self.lengths = queries.max_length, keys.max_length
        self.causal = queries is keys and queries.pattern == "causal"
        self.score_mask: Tensor | None = None
        if bias is not None:
            positions = torch.arange(keys.max_length, device=keys.device)
            allowed = positions[:, None] >= positions if self.causal else None
            self.score_mask = _mask_scores(bias(positions, positions), allowed)[None]
            self.causal = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        query_length, key_length = self.lengths
        q, k = q.to(v.dtype), k.to(v.dtype)  # query and key norms give float32
        q = q.unflatten(0, (-1, query_length))  # (G, L, H, D)
        k, v = k.unflatten(0, (-1, key_length)), v.unflatten(0, (-1, key_length))
        return _attend_rows(q, k, v, self.score_mask, params, self.causal).flatten(0, 1)


class VarlenAttention:
    """Variable-length flash attention on packed sequences."""

    def __init__(self, queries: Mask, keys: Mask, window: int) -> None:
        self.starts = queries.starts, keys.starts
        # Powers of two: one compiled block then serves many batches.
        self.max_lengths = next_power_of_two(queries.max_length), next_power_of_two(keys.max_length)
        self.causal = queries is keys and queries.pattern == "causal"
        self.window = (window, 0 if self.causal else window) if window else (None, None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        q, k = q.to(v.dtype), k.to(v.dtype)  # query and key norms give float32
        out: Tensor = torch.ops.aten._flash_attention_forward(  # see `has_flash_attention_op`
            *(q, k, v, *self.starts, *self.max_lengths, params.dropout),
            *(self.causal and not self.window[0], False),
            scale=params.scale,
            window_size_left=self.window[0],
            window_size_right=self.window[1],
        )[0]
        return out


def next_power_of_two(number: int) -> int:
    """Round up to a power of two.

    >>> next_power_of_two(100), next_power_of_two(128)
    (128, 128)
    """
    return 1 << max(0, number - 1).bit_length()


class PaddedAttention:
    """Attention over groups of sequences of similar length, each padded to its longest."""

    def __init__(
        self,
        mask: Mask,
        window: int,
        bias: PositionBias | None,
        dense: bool,
        prefix_length: int = 0,
    ) -> None:
        self.mask, self.window, self.dense = mask, window, dense
        self.prefix_length = prefix_length
        self.score_masks = [self._score_mask(group, bias) for group in mask.groups]

    def _score_mask(self, group: PaddedGroup, bias: PositionBias | None) -> Tensor | None:
        """Build the mask (bool) or mask plus bias (float) of a group; None: the kernel's own."""
        if bias is None and not self.dense and self._is_causal():
            return None
        allowed = group.allowed(self.window, self.prefix_length)
        keys = torch.arange(-self.prefix_length, group.length, device=self.mask.device)
        if allowed is None and self.dense:
            allowed = torch.ones_like(keys, dtype=torch.bool)[None, None]
        if bias is None:
            return None if allowed is None else allowed[:, None]
        return _mask_scores(bias(keys[self.prefix_length :], keys)[None], allowed)

    def _is_causal(self) -> bool:
        return self.mask.pattern == "causal" and not self.window and not self.prefix_length

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        outputs = []
        for group, score_mask in zip(self.mask.groups, self.score_masks, strict=True):
            rows = group.pad(q), group.pad(k), group.pad(v)  # (G, L, ., D)
            if params.score_terms is not None:  # prefix positions have none
                terms = params.score_terms(rows[0].transpose(1, 2), rows[1].transpose(1, 2))
                terms = pad(terms, (self.prefix_length, 0))
                score_mask = _mask_scores(terms, group.allowed(self.window, self.prefix_length))
            rows = rows[0], *_prepend(params.prefix, rows[1], rows[2])
            causal = score_mask is None and self._is_causal()
            out = _attend_rows(*rows, score_mask, params, causal)  # (G, L, H, D)
            outputs.append(group.unpad(out))
        if len(outputs) == 1:
            return outputs[0]
        return select_rows(torch.cat(outputs), self.mask.ungroup_order)


class PaddedCrossAttention:
    """Attention from padded decoder rows to padded encoder rows."""

    def __init__(self, queries: Mask, memory: Mask, prefix_length: int = 0) -> None:
        self.queries, self.memory = queries.rows, memory.rows
        self.score_mask = None
        if not self.memory.equal_lengths:
            self.score_mask = self.memory.visible_keys(prefix_length)[:, None, None]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        keys, values = _prepend(params.prefix, self.memory.pad(k), self.memory.pad(v))
        rows = self.queries.pad(q), keys, values
        return self.queries.unpad(_attend_rows(*rows, self.score_mask, params))


class CachedAttention:
    """Attention from new tokens to a cache that holds them and all earlier ones."""

    def __init__(self, mask: Mask, cache: KVCache, window: int, bias: PositionBias | None) -> None:
        self.rows, self.length = mask.rows, cache.attended_length(mask.max_length)
        step = torch.arange(mask.max_length, device=mask.device)
        queries = cache.lengths[:, None] + step  # (B, Q) positions
        keys = torch.arange(self.length, device=mask.device)
        prefix = None
        if mask.pattern != "causal":
            prefix = (cache.lengths + mask.prefix)[:, None, None]
        allowed = is_visible(queries[..., None], keys, prefix, window)  # (B, Q, T)
        # A float mask: torch would convert a boolean one again in every layer.
        scores = cache.keys_values.new_zeros(1) if bias is None else bias(queries, keys)
        self.score_mask = _mask_scores(scores, allowed)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        keys, values = k[:, : self.length].to(q.dtype), v[:, : self.length].to(q.dtype)
        rows = self.rows.pad(q), keys, values
        return self.rows.unpad(_attend_rows(*rows, self.score_mask, params))


def _prepend(prefix: KeyValues | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Put trained keys and values before each row."""  # (G, L, K, D) -> (G, P + L, K, D)
    if prefix is None:
        return k, v
    keys, values = (part.to(k.dtype).expand(len(k), *part.shape) for part in prefix)
    return torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)


def _mask_scores(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Set scores to minus infinity where attention is not allowed."""  # (…, H, Q, L)
    return scores if allowed is None else scores.masked_fill(~allowed.unsqueeze(-3), float("-inf"))


def _attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mask: Tensor | None,
    params: AttentionParams,
    causal: bool = False,
) -> Tensor:
    """Compute scaled dot-product attention over padded rows."""  # (G, L, H, D) -> (G, L, H, D)
    dtype = q.dtype
    # The CPU's backward kernel is several times faster in float32 than in bfloat16.
    on_cpu = q.device.type == "cpu"
    is_traced = on_cpu and assumes_gpu()
    upcast = on_cpu and not is_traced and q.requires_grad and dtype == torch.bfloat16
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    if score_mask is not None and score_mask.dtype != torch.bool:
        score_mask = score_mask.to(q.dtype)
    with torch.autocast("cpu", enabled=False) if upcast else nullcontext():
        out = scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            attn_mask=score_mask,
            dropout_p=0.0 if is_traced else params.dropout,  # a GPU's kernels store no mask
            is_causal=causal,
            scale=params.scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
    return out.transpose(1, 2).to(dtype)


@cache
def exclude_from_compile() -> None:
    """Exclude the backends whose shapes change with every batch from torch.compile."""
    for backend in (PaddedAttention, PaddedCrossAttention, CachedAttention):
        backend.attend = torch.compiler.disable(backend.attend)  # type: ignore[method-assign]
