"""Triton kernels for flash attention with a position bias that all sequences share.

    G  sequences of one length     H  heads     D  head dimension     N  tokens = G x length
    P  the length, rounded up to whole tiles

The gradient of the scores is stored once, in the type of the queries: the gradient of the bias is
its sum over the sequences, and that of the queries its product with the keys. Both take less time
than computing the scores again. No kernel uses atomic additions, so results are deterministic.

The bias is also the mask: it is minus infinity where attention is not allowed. It is multiplied by
log2(e), so that the scores are logarithms to base 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firth.utils.triton_language import jit, tl

TILE = 128  # P is a multiple of this; so it is of all tiles below
LOG2_E = 1.4426950408889634
# For each kernel: queries and keys of a tile, num_warps, num_stages; by the head dimension.
NARROW = {"forward": (128, 64, 4, 3), "keys": (64, 128, 8, 3), "queries": (128, 64, 4, 3)}
WIDE = {"forward": (128, 64, 8, 2), "keys": (64, 128, 8, 2), "queries": (128, 64, 8, 2)}
OPTIONS = {32: NARROW, 64: NARROW, 128: WIDE}
ARGUMENTS = "Tensor log2_bias, SymInt length, bool causal, float scale)"
SCHEMA = f"(Tensor qkv, Tensor bias, {ARGUMENTS} -> (Tensor, Tensor)"
BACKWARD_SCHEMA = (
    f"(Tensor gradient, Tensor out, Tensor lse, Tensor qkv, {ARGUMENTS} -> (Tensor, Tensor)"
)


# Triton accepts no other annotations than constexpr.
@jit
def _load(start, width, rows, length, dims: tl.constexpr, even: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load rows of one head; those beyond the end of the sequence are zeros."""  # (rows, D)
    pointers = start + rows[:, None] * width + tl.arange(0, dims)[None, :]
    if not even:
        return tl.load(pointers, mask=rows[:, None] < length, other=0.0)
    return tl.load(pointers)


@jit
def _store(  # type: ignore[no-untyped-def]
    start, width, rows, length, values, dims: tl.constexpr, even: tl.constexpr
):
    """Store rows of one head, without those beyond the end of the sequence."""
    pointers = start + rows[:, None] * width + tl.arange(0, dims)[None, :]
    if even:
        tl.store(pointers, values.to(start.dtype.element_ty))
    else:
        tl.store(pointers, values.to(start.dtype.element_ty), mask=rows[:, None] < length)


@jit
def _program(index, blocks, heads, length):  # type: ignore[no-untyped-def]
    """Return what a program computes: tile, head, row of `lse`, first token of its sequence."""
    sequence_head = index // blocks
    begin = (sequence_head // heads).to(tl.int64) * length
    return index % blocks, sequence_head % heads, sequence_head, begin


@jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv,
    log2_bias,
    out,
    lse,
    scale,
    length,
    padded,
    heads,
    causal: tl.constexpr,
    even: tl.constexpr,
    dims: tl.constexpr,
    tile_q: tl.constexpr,
    tile_k: tl.constexpr,
):
    """Compute the output and the log-sum-exp of some queries of one head of one sequence."""
    tile, head, row, begin = _program(tl.program_id(0), padded // tile_q, heads, length)
    queries, width = tile * tile_q + tl.arange(0, tile_q), heads * dims
    start = qkv + begin * 3 * width + head * dims
    q = _load(start, 3 * width, queries, length, dims, even)
    bias = log2_bias + (head * padded + queries[:, None]) * padded + tl.arange(0, tile_k)[None, :]
    row_max = tl.full((tile_q,), -float("inf"), tl.float32)
    total = tl.zeros((tile_q,), tl.float32)
    result = tl.zeros((tile_q, dims), tl.float32)
    end = length
    if causal:
        end = tl.minimum(length, (tile + 1) * tile_q)
    for first in range(0, end, tile_k):
        keys = first + tl.arange(0, tile_k)
        k = _load(start + width, 3 * width, keys, length, dims, even)
        scores = tl.dot(q, tl.trans(k)) * scale + tl.load(bias + first)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        p = tl.exp2(scores - new_max[:, None])
        decay = tl.exp2(row_max - new_max)
        total = total * decay + tl.sum(p, 1)
        v = _load(start + 2 * width, 3 * width, keys, length, dims, even)
        result = tl.dot(p.to(v.dtype), v, result * decay[:, None])
        row_max = new_max
    result = result / total[:, None]
    _store(out + begin * width + head * dims, width, queries, length, result, dims, even)
    tl.store(lse + row * padded + queries, row_max + tl.log2(total))


@jit
def _delta_kernel(  # type: ignore[no-untyped-def]
    dout,
    out,
    delta,
    length,
    padded,
    heads,
    even: tl.constexpr,
    dims: tl.constexpr,
    tile_q: tl.constexpr,
):
    """Compute the sum of output times gradient for some queries of one head of one sequence."""
    tile, head, row, begin = _program(tl.program_id(0), padded // tile_q, heads, length)
    queries, width = tile * tile_q + tl.arange(0, tile_q), heads * dims
    offset = begin * width + head * dims
    do = _load(dout + offset, width, queries, length, dims, even).to(tl.float32)
    o = _load(out + offset, width, queries, length, dims, even).to(tl.float32)
    tl.store(delta + row * padded + queries, tl.sum(do * o, 1))


@jit
def _keys_kernel(  # type: ignore[no-untyped-def]
    dout,
    lse,
    delta,
    qkv,
    log2_bias,
    ds_t,
    dqkv,
    scale,
    factor,
    length,
    padded,
    heads,
    causal: tl.constexpr,
    even: tl.constexpr,
    dims: tl.constexpr,
    tile_q: tl.constexpr,
    tile_k: tl.constexpr,
):
    """Compute the gradients of some keys and their values, and of their (transposed) scores."""
    tile, head, row, begin = _program(tl.program_id(0), padded // tile_k, heads, length)
    keys, width = tile * tile_k + tl.arange(0, tile_k), heads * dims
    start = qkv + begin * 3 * width + head * dims
    dout += begin * width + head * dims
    k = _load(start + width, 3 * width, keys, length, dims, even)
    v = _load(start + 2 * width, 3 * width, keys, length, dims, even)
    dk, dv = tl.zeros((tile_k, dims), tl.float32), tl.zeros((tile_k, dims), tl.float32)
    step = tl.arange(0, tile_q)
    bias = log2_bias + (head * padded + keys[:, None]) * padded + step[None, :]
    pointers = ds_t + row.to(tl.int64) * padded * padded
    pointers += keys[:, None] * padded + step[None, :]  # (tile_k, tile_q)
    first_query = 0
    if causal:
        first_query = tile * tile_k // tile_q * tile_q
        for first in range(0, first_query, tile_q):
            tl.store(pointers + first, tl.zeros((tile_k, tile_q), ds_t.dtype.element_ty))
    for first in range(first_query, padded, tile_q):
        queries = first + step
        q = _load(start, 3 * width, queries, length, dims, even)
        do = _load(dout, width, queries, length, dims, even)
        scores = tl.dot(k, tl.trans(q)) * scale + tl.load(bias + first)
        p = tl.exp2(scores - tl.load(lse + row * padded + queries)[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv)
        sums = tl.load(delta + row * padded + queries)
        ds = (p * (tl.dot(v, tl.trans(do)) - sums[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk)
        tl.store(pointers + first, ds)
    start = dqkv + begin * 3 * width + head * dims
    _store(start + width, 3 * width, keys, length, dk * factor, dims, even)
    _store(start + 2 * width, 3 * width, keys, length, dv, dims, even)


@jit
def _queries_kernel(  # type: ignore[no-untyped-def]
    ds_t,
    qkv,
    dqkv,
    factor,
    length,
    padded,
    heads,
    causal: tl.constexpr,
    even: tl.constexpr,
    dims: tl.constexpr,
    tile_q: tl.constexpr,
    tile_k: tl.constexpr,
):
    """Compute the gradient of some queries from that of their (transposed) scores."""
    tile, head, row, begin = _program(tl.program_id(0), padded // tile_q, heads, length)
    queries, width = tile * tile_q + tl.arange(0, tile_q), heads * dims
    offset = begin * 3 * width + head * dims
    step = tl.arange(0, tile_k)
    pointers = ds_t + row.to(tl.int64) * padded * padded
    pointers += step[:, None] * padded + queries[None, :]  # (tile_k, tile_q)
    result = tl.zeros((tile_q, dims), tl.float32)
    end = length
    if causal:
        end = tl.minimum(length, (tile + 1) * tile_q)
    for first in range(0, end, tile_k):
        ds = tl.load(pointers + first * padded)
        k = _load(qkv + offset + width, 3 * width, first + step, length, dims, even)
        result = tl.dot(tl.trans(ds), k, result)
    _store(dqkv + offset, 3 * width, queries, length, result * factor, dims, even)


def _options(kernel: str, length: int, causal: bool, dims: int) -> dict[str, Any]:
    """Return the compile-time constants of a kernel."""
    queries, keys, warps, stages = OPTIONS[dims][kernel]
    tiles = dict(tile_q=queries, tile_k=keys, num_warps=warps, num_stages=stages)
    return dict(causal=causal, even=length % TILE == 0, dims=dims, **tiles)


@torch.library.custom_op("firth::bias_attention", mutates_args=(), schema=SCHEMA)
def bias_attention(
    qkv: Tensor, bias: Tensor, log2_bias: Tensor, length: int, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute attention of sequences of one length: (N, 3 H D) -> (N, H D), and its log-sum-exp.

    `bias`: (H, P, P) queries and keys, only for its gradient. `log2_bias`: (2, H, P, P), the values
    that are added, and the same transposed: see `prepare_bias`.
    """
    _, heads, padded, _ = log2_bias.shape
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    rows = len(qkv) // length * heads
    lse = qkv.new_empty(rows, padded, dtype=torch.float32)
    options = _options("forward", length, causal, out.shape[1] // heads)
    tensors, sizes = (qkv, log2_bias[0], out, lse), (length, padded, heads)
    with torch.cuda.device_of(qkv):
        _forward_kernel[(rows * (padded // options["tile_q"]),)](
            *tensors, scale * LOG2_E, *sizes, **options
        )
    return out, lse


@torch.library.custom_op("firth::bias_attention_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def bias_attention_backward(
    gradient: Tensor,
    out: Tensor,
    lse: Tensor,
    qkv: Tensor,
    log2_bias: Tensor,
    length: int,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of qkv and of the (transposed) scores: (N, 3 H D), (G, H, P, P)."""
    _, heads, padded, _ = log2_bias.shape
    rows, dims, sizes = len(lse), out.shape[1] // heads, (length, padded, heads)
    dqkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    ds_t = qkv.new_empty(rows // heads, heads, padded, padded)
    keys, queries = (_options(kernel, length, causal, dims) for kernel in ("keys", "queries"))
    with torch.cuda.device_of(qkv):
        _delta_kernel[(rows * (padded // TILE),)](
            *(gradient, out, delta, *sizes), even=keys["even"], dims=dims, tile_q=TILE
        )
        _keys_kernel[(rows * (padded // keys["tile_k"]),)](
            *(gradient, lse, delta, qkv, log2_bias[1], ds_t, dqkv),
            *(scale * LOG2_E, scale, *sizes),
            **keys,
        )
        _queries_kernel[(rows * (padded // queries["tile_q"]),)](
            *(ds_t, qkv, dqkv, scale, *sizes), **queries
        )
    return dqkv, ds_t


@bias_attention.register_fake
def _(qkv: Tensor, bias: Tensor, log2_bias: Tensor, length: int, *_: Any) -> tuple[Tensor, Tensor]:
    tokens = qkv.shape[0]  # `len` would make the shape static
    rows = tokens // length * log2_bias.shape[1]
    lse = qkv.new_empty(rows, log2_bias.shape[2], dtype=torch.float32)
    return qkv.new_empty(tokens, qkv.shape[1] // 3), lse


@bias_attention_backward.register_fake
def _(
    gradient: Tensor, out: Tensor, lse: Tensor, qkv: Tensor, log2_bias: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    sizes = log2_bias.shape[1:]
    return torch.empty_like(qkv), qkv.new_empty(lse.shape[0] // sizes[0], *sizes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, log2_bias, *ctx.options = inputs
    ctx.save_for_backward(*output, qkv, log2_bias)
    ctx.bias_dtype = bias.dtype
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    inputs = gradient.contiguous(), *ctx.saved_tensors, *ctx.options
    dqkv, ds_t = bias_attention_backward(*inputs)
    dbias = None
    if ctx.needs_input_grad[1]:
        dbias = ds_t.sum(0, dtype=torch.float32).mT.to(ctx.bias_dtype)
    return dqkv, dbias, None, None, None, None


bias_attention.register_autograd(_differentiate, setup_context=_save)


def prepare_bias(bias: Tensor, length: int, causal: bool, dtype: torch.dtype) -> Tensor:
    """Multiply a bias by log2(e) and mask it, once for all layers: (H, P, P) -> (2, H, P, P)."""
    keys = torch.arange(bias.shape[-1], device=bias.device)
    allowed = (keys < length)[None]
    if causal:
        allowed = allowed & (keys <= keys[:, None])
    masked = (bias.detach() * LOG2_E).masked_fill(~allowed, float("-inf")).to(dtype)
    return torch.stack([masked, masked.mT])


def padded_length(length: int) -> int:
    """Round a length up to whole tiles.

    >>> padded_length(114), padded_length(512)
    (128, 512)
    """
    return -(-length // TILE) * TILE
