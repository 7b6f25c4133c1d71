"""A Triton kernel for attention over short sequences, with the rotation of queries and keys.

    N  tokens of the batch     H  heads     D  head dimension     L  positions of a tile

One program computes one head of one sequence, whose keys fit into one tile. Flash attention's
kernels are made for long sequences: at 64 tokens they take five times as long, and the rotation and
the concatenation of the gradients of queries, keys and values are kernels of their own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firth.utils.triton_language import jit, tl

MAX_LENGTH = 128  # of a sequence
MIN_TILE = 16  # positions: the smallest product of a GPU's tensor cores
SCHEMA = (
    "(Tensor qkv, Tensor? cos, Tensor? sin, Tensor starts, Tensor? prefix, "
    "SymInt heads, SymInt tile, bool causal, float scale) -> Tensor"
)
BACKWARD_SCHEMA = SCHEMA.replace("(Tensor qkv", "(Tensor gradient, Tensor qkv")


# Triton accepts no other annotations than constexpr.
@jit
def _pointers(start, width, positions, dims: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return pointers to dimensions of the positions of a sequence."""  # (L, dims)
    return start + positions[:, None] * width + tl.arange(0, dims)[None, :]


@jit
def _load_angles(  # type: ignore[no-untyped-def]
    cos, sin, positions, rotary: tl.constexpr, half: tl.constexpr
):
    """Load the cosines and sines of positions, once for queries and keys."""  # (L, D / 2) each
    c, s = 1.0, 0.0
    if rotary:
        c = tl.load(_pointers(cos, half, positions, half))
        s = tl.load(_pointers(sin, half, positions, half))
    return c, s


@jit
def _load_halves(  # type: ignore[no-untyped-def]
    start, width, positions, inside, c, s, rotary: tl.constexpr, half: tl.constexpr
):
    """Load both halves of the dimensions of queries or keys, rotated where positions are rotary."""
    pointers = _pointers(start, width, positions, half)
    first = tl.load(pointers, mask=inside, other=0.0)
    second = tl.load(pointers + half, mask=inside, other=0.0)
    if rotary:
        x, y = first.to(tl.float32), second.to(tl.float32)
        first, second = (x * c - y * s).to(first.dtype), (y * c + x * s).to(first.dtype)
    return first, second


@jit
def _store_halves(  # type: ignore[no-untyped-def]
    start, width, positions, inside, c, s, x, y, rotary: tl.constexpr, half: tl.constexpr
):
    """Store the gradient of queries or keys, rotated back."""
    if rotary:
        x, y = x * c + y * s, y * c - x * s
    pointers = _pointers(start, width, positions, half)
    tl.store(pointers, x, mask=inside)
    tl.store(pointers + half, y, mask=inside)


@jit
def _probabilities(  # type: ignore[no-untyped-def]
    q1, q2, k1, k2, positions, length, prefix, scale, causal: tl.constexpr
):
    """Compute attention probabilities."""  # (L, L)
    scores = tl.dot(q1, tl.trans(k1)) + tl.dot(q2, tl.trans(k2))
    visible = positions[None, :] < length
    if causal:
        both = (positions[None, :] < prefix) & (positions[:, None] < prefix)
        visible = visible & (both | (positions[None, :] <= positions[:, None]))
    log2_e: tl.constexpr = 1.4426950408889634
    scores = tl.where(visible, scores * (scale * log2_e), -float("inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@jit
def _sequence(starts, prefixes, heads):  # type: ignore[no-untyped-def]
    """Return the head of this program, and its sequence: first token, length and prefix."""
    sequence, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    begin = tl.load(starts + sequence).to(tl.int64)
    length = (tl.load(starts + sequence + 1) - begin).to(tl.int32)
    prefix = 0
    if prefixes is not None:
        prefix = tl.load(prefixes + sequence).to(tl.int32)
    return head, begin, length, prefix


@jit
def _forward_kernel(  # type: ignore[no-untyped-def]
    qkv,
    cos,
    sin,
    starts,
    prefixes,
    out,
    scale,
    heads,
    rotary: tl.constexpr,
    causal: tl.constexpr,
    tile: tl.constexpr,
    half: tl.constexpr,
):
    head, begin, length, prefix = _sequence(starts, prefixes, heads)
    if length == 0:
        return
    positions, width = tl.arange(0, tile), 2 * half * heads
    inside = positions[:, None] < length
    c, s = _load_angles(cos, sin, positions, rotary, half)
    q = qkv + begin * 3 * width + head * 2 * half
    q1, q2 = _load_halves(q, 3 * width, positions, inside, c, s, rotary, half)
    k1, k2 = _load_halves(q + width, 3 * width, positions, inside, c, s, rotary, half)
    v_pointers = _pointers(q + 2 * width, 3 * width, positions, 2 * half)
    v = tl.load(v_pointers, mask=inside, other=0.0)
    p = _probabilities(q1, q2, k1, k2, positions, length, prefix, scale, causal)
    out_pointers = _pointers(out + begin * width + head * 2 * half, width, positions, 2 * half)
    tl.store(out_pointers, tl.dot(p.to(v.dtype), v), mask=inside)


@jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    qkv,
    cos,
    sin,
    starts,
    prefixes,
    dout,
    dqkv,
    scale,
    heads,
    rotary: tl.constexpr,
    causal: tl.constexpr,
    tile: tl.constexpr,
    half: tl.constexpr,
):
    head, begin, length, prefix = _sequence(starts, prefixes, heads)
    if length == 0:
        return
    positions, width = tl.arange(0, tile), 2 * half * heads
    inside = positions[:, None] < length
    offset = begin * 3 * width + head * 2 * half
    c, s = _load_angles(cos, sin, positions, rotary, half)
    q, k, v = qkv + offset, qkv + offset + width, qkv + offset + 2 * width
    q1, q2 = _load_halves(q, 3 * width, positions, inside, c, s, rotary, half)
    k1, k2 = _load_halves(k, 3 * width, positions, inside, c, s, rotary, half)
    v_tile = tl.load(_pointers(v, 3 * width, positions, 2 * half), mask=inside, other=0.0)
    dout_pointers = _pointers(dout + begin * width + head * 2 * half, width, positions, 2 * half)
    dout_tile = tl.load(dout_pointers, mask=inside, other=0.0)
    p = _probabilities(q1, q2, k1, k2, positions, length, prefix, scale, causal)
    dv = tl.dot(tl.trans(p.to(dout_tile.dtype)), dout_tile)
    dq = dqkv + offset
    tl.store(_pointers(dq + 2 * width, 3 * width, positions, 2 * half), dv, mask=inside)
    dp = tl.dot(dout_tile, tl.trans(v_tile))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None]) * scale).to(q1.dtype)
    x, y = tl.dot(ds, k1), tl.dot(ds, k2)
    c, s = _load_angles(cos, sin, positions, rotary, half)  # again: registers are scarce
    _store_halves(dq, 3 * width, positions, inside, c, s, x, y, rotary, half)
    ds = tl.trans(ds)
    x, y = tl.dot(ds, q1), tl.dot(ds, q2)
    _store_halves(dq + width, 3 * width, positions, inside, c, s, x, y, rotary, half)


@torch.library.custom_op("firth::short_attention", mutates_args=(), schema=SCHEMA)
def short_attention(
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    starts: Tensor,
    prefix: Tensor | None,
    heads: int,
    tile: int,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute attention of packed sequences: (N, 3 H D) queries, keys and values -> (N, H D).

    `cos`, `sin`: (L, 1, D / 2), of rotary positions. `starts`: (S + 1,) cumulative lengths, each at
    most `tile` = L. `prefix`: (S,) first tokens that see each other although attention is causal.
    """
    out = qkv.new_empty(len(qkv), qkv.shape[1] // 3)
    half = out.shape[1] // (2 * heads)
    grid = ((len(starts) - 1) * heads,)
    flags = dict(rotary=cos is not None, causal=causal, tile=tile, half=half)
    tensors = qkv, cos, sin, starts, prefix, out
    with torch.cuda.device_of(qkv):
        _forward_kernel[grid](*tensors, scale, heads, **flags, num_warps=_warps(tile, half))
    return out


@torch.library.custom_op("firth::short_attention_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def short_attention_backward(
    gradient: Tensor,
    qkv: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    starts: Tensor,
    prefix: Tensor | None,
    heads: int,
    tile: int,
    causal: bool,
    scale: float,
) -> Tensor:
    """Compute the gradient of queries, keys and values."""  # (N, H D) -> (N, 3 H D)
    dqkv = torch.empty_like(qkv)
    half = gradient.shape[1] // (2 * heads)
    grid = ((len(starts) - 1) * heads,)
    flags = dict(rotary=cos is not None, causal=causal, tile=tile, half=half)
    tensors = qkv, cos, sin, starts, prefix, gradient.contiguous(), dqkv
    with torch.cuda.device_of(qkv):
        _backward_kernel[grid](*tensors, scale, heads, **flags, num_warps=_warps(tile, half))
    return dqkv


def _warps(tile: int, half: int) -> int:
    """Return the fastest number of warps, measured on an H200."""
    return max(1, min(tile // 16, 4 if half <= 32 else 8))


@short_attention.register_fake
def _(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(qkv.shape[0], qkv.shape[1] // 3)  # `len` would make the shape static


@short_attention_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.options = inputs[5:]


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return short_attention_backward(gradient, *ctx.saved_tensors, *ctx.options), *(None,) * 8


short_attention.register_autograd(_differentiate, setup_context=_save)


def tile_length(max_length: int) -> int:
    """Return the number of positions of a tile for sequences of at most `max_length` tokens.

    >>> tile_length(5), tile_length(100)
    (16, 128)
    """
    return max(MIN_TILE, 1 << (max_length - 1).bit_length())
