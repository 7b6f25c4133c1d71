"""Triton kernels for decoding one token of each sequence: projections and cached attention.

    B  sequences     W  inputs     V  outputs     H  heads     K  key-value heads
    D  head dimension     T  cache positions     S  splits of the cached positions

With torch, a layer is about seventeen kernels of a few microseconds, each of which waits for the
one before. Here it is five (seven for several sequences): a projection applies the norm before it
and the activation or residual connection after it, and attention rotates queries and keys and
writes the cache. Values are rounded where torch rounds them.
"""

from __future__ import annotations

from firth.models.triton_activations import differentiate
from firth.utils.triton_language import gdc_launch_dependents, gdc_wait, jit, tl


# Triton accepts no other annotations than constexpr.
@jit
def _start_next(overlap: tl.constexpr):  # type: ignore[no-untyped-def]
    """Let the next kernel start, up to the point where it waits (since Hopper)."""
    if overlap:
        gdc_launch_dependents()


@jit
def _wait(overlap: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait until the kernel before has finished; only weights may be read earlier."""
    if overlap:
        gdc_wait()


@jit
def embed_kernel(  # type: ignore[no-untyped-def]
    tokens,
    lengths,
    embeddings,
    positions,
    origins,
    out,
    width,
    capacity,
    scale,
    tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """Look up the embeddings of new tokens and positions, and note in `origins` who writes them."""
    _wait(overlap)
    row = tl.program_id(0).to(tl.int64)
    token, length = tl.load(tokens + row), tl.load(lengths + row)
    column = tl.arange(0, tile)
    inside = column < width
    dtype = out.dtype.element_ty
    x = tl.load(embeddings + token * width + column, mask=inside)
    if scale is not None:
        x = (x.to(tl.float32) * scale).to(dtype)
    if positions is not None:
        x += tl.load(positions + length * width + column, mask=inside)
    tl.store(out + row * width + column, x, mask=inside)
    if origins is not None:  # the new token is cached in the sequence's own row
        tl.store(origins + row * capacity + length, row)


@jit
def _combine_splits(  # type: ignore[no-untyped-def]
    parts, log_sums, row, column, inside, width, head_dim: tl.constexpr, splits: tl.constexpr
):
    """Combine the results of attention to each split, by its log-sum-exp (base 2)."""
    heads = width // head_dim
    log_sum = log_sums + row[:, None] * splits * heads + column[None, :] // head_dim
    largest = tl.load(log_sum, mask=inside, other=0.0)
    for split in tl.static_range(1, splits):
        largest = tl.maximum(largest, tl.load(log_sum + split * heads, mask=inside, other=0.0))
    total = largest * 0.0
    result = largest * 0.0
    for split in tl.static_range(splits):
        share = tl.exp2(tl.load(log_sum + split * heads, mask=inside, other=0.0) - largest)
        part = parts + (row[:, None] * splits + split) * width + column[None, :]
        result += share * tl.load(part, mask=inside, other=0.0)
        total += share
    return result / total


@jit
def _normalised(  # type: ignore[no-untyped-def]
    x, inside, column, weight, bias, eps, size: tl.constexpr, norm: tl.constexpr
):
    """Apply a norm to rows of float32 values."""  # (B, W)
    if norm == "layer":
        x = tl.where(inside, x - (tl.sum(x, 1) / size)[:, None], 0.0)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / size + eps)[:, None]
    factor = tl.load(weight + column, mask=column < size, other=0.0).to(tl.float32)
    if norm == "rms-plus-one":
        factor += 1.0
    x = x * factor[None, :]
    if bias is not None:
        x += tl.load(bias + column, mask=column < size, other=0.0).to(tl.float32)[None, :]
    return x


@jit
def norm_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    eps,
    out,
    size: tl.constexpr,
    norm: tl.constexpr,
    tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """Normalize a row."""
    column = tl.arange(0, tile)
    inside = (column < size)[None, :]
    _wait(overlap)
    at = tl.program_id(0).to(tl.int64) * size + column[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    value = _normalised(value, inside, column, weight, bias, eps, size, norm)
    _start_next(overlap)
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@jit
def _finish(  # type: ignore[no-untyped-def]
    total,
    gate,
    row,
    output,
    bias,
    residual,
    out,
    rows,
    outputs,
    dtype,
    activation: tl.constexpr,
    gated: tl.constexpr,
):
    """Add the bias, apply the activation or add to the residual stream, and store."""
    inside = output < outputs
    if bias is not None:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[None, :]
        if gated:
            shift = tl.load(bias + outputs + output, mask=inside, other=0.0)
            gate += shift.to(tl.float32)[None, :]
    y = total.to(dtype)
    if activation != "none":
        y, _ = differentiate(y.to(tl.float32), activation)
        y = y.to(dtype)
    if gated:
        y = (y.to(tl.float32) * gate.to(dtype).to(tl.float32)).to(dtype)
    stored = (row[:, None] < rows) & inside[None, :]
    at = row[:, None] * outputs + output[None, :]
    if residual is not None:
        y = tl.load(residual + at, mask=stored, other=0.0).to(tl.float32) + y.to(tl.float32)
        y = y.to(dtype)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=stored)


@jit
def vector_kernel(  # type: ignore[no-untyped-def]
    x,
    log_sums,
    norm_weight,
    norm_bias,
    weight,
    bias,
    residual,
    out,
    rows,
    outputs,
    output_stride,
    input_stride,
    eps,
    inputs: tl.constexpr,
    norm: tl.constexpr,
    activation: tl.constexpr,
    gated: tl.constexpr,
    head_dim: tl.constexpr,
    splits: tl.constexpr,
    out_tile: tl.constexpr,
    in_tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """Multiply one row: a norm, a matrix, and an activation or a residual connection.

    The first weights are loaded while the kernel before may still be computing the row, and those
    of the next outputs before the present ones are stored.
    """  # (W,) -> (V,)
    row = tl.arange(0, 1)
    column = tl.arange(0, in_tile)
    inside = column[None, :] < inputs
    output = tl.program_id(0) * out_tile + tl.arange(0, out_tile)
    step = tl.num_programs(0) * out_tile
    w, gates = _load_rows(
        weight, output, column, inside, outputs, output_stride, input_stride, gated
    )
    _wait(overlap)
    if splits > 1:
        value = _combine_splits(x, log_sums, row, column, inside, inputs, head_dim, splits)
    else:
        value = tl.load(x + column[None, :], mask=inside, other=0.0)
    value = value.to(tl.float32)
    if norm != "none":
        value = _normalised(value, inside, column, norm_weight, norm_bias, eps, inputs, norm)
    dtype = weight.dtype.element_ty
    value = value.to(dtype).to(tl.float32)
    for _ in range(tl.program_id(0) * out_tile, outputs, step):
        total = tl.sum(value * w.to(tl.float32), 1)[None, :]
        gate = total
        if gated:
            gate = tl.sum(value * gates.to(tl.float32), 1)[None, :]
        done = output
        output += step
        w, gates = _load_rows(
            weight, output, column, inside, outputs, output_stride, input_stride, gated
        )
        _start_next(overlap)
        _finish(
            total, gate, row, done, bias, residual, out, rows, outputs, dtype, activation, gated
        )


@jit
def _load_rows(  # type: ignore[no-untyped-def]
    weight,
    output,
    column,
    inside,
    outputs,
    output_stride,
    input_stride,
    gated: tl.constexpr,
):
    """Load rows of a matrix, and those of the gates."""  # (tile, W) each
    at = output[:, None].to(tl.int64) * output_stride + column[None, :] * input_stride
    inside = (output[:, None] < outputs) & inside
    w = tl.load(weight + at, mask=inside, other=0.0)
    gates = w
    if gated:
        gates = tl.load(weight + outputs * output_stride + at, mask=inside, other=0.0)
    return w, gates


@jit
def matrix_kernel(  # type: ignore[no-untyped-def]
    x,
    log_sums,
    weight,
    bias,
    residual,
    out,
    rows,
    outputs,
    output_stride,
    input_stride,
    inputs: tl.constexpr,
    activation: tl.constexpr,
    gated: tl.constexpr,
    head_dim: tl.constexpr,
    splits: tl.constexpr,
    precision: tl.constexpr,
    row_tile: tl.constexpr,
    out_tile: tl.constexpr,
    in_tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """Multiply rows: a matrix, and an activation or a residual connection."""  # (B, W) -> (B, V)
    dtype = weight.dtype.element_ty
    row = tl.program_id(1).to(tl.int64) * row_tile + tl.arange(0, row_tile)
    output = tl.program_id(0).to(tl.int64) * out_tile + tl.arange(0, out_tile)
    total = tl.zeros([row_tile, out_tile], tl.float32)
    gate = tl.zeros([row_tile, out_tile], tl.float32)
    _wait(overlap)
    for start in range(0, inputs, in_tile):
        column = start + tl.arange(0, in_tile)
        inside = (row[:, None] < rows) & (column[None, :] < inputs)
        matrix = weight + output[None, :] * output_stride + column[:, None] * input_stride
        in_matrix = (output[None, :] < outputs) & (column[:, None] < inputs)
        w = tl.load(matrix, mask=in_matrix, other=0.0)
        if splits > 1:
            value = _combine_splits(x, log_sums, row, column, inside, inputs, head_dim, splits)
            value = value.to(dtype)
        else:
            value = tl.load(x + row[:, None] * inputs + column[None, :], mask=inside, other=0.0)
        total = tl.dot(value, w, total, input_precision=precision)
        if gated:
            w = tl.load(matrix + outputs * output_stride, mask=in_matrix, other=0.0)
            gate = tl.dot(value, w, gate, input_precision=precision)
    _start_next(overlap)
    _finish(total, gate, row, output, bias, residual, out, rows, outputs, dtype, activation, gated)


@jit
def _head_halves(  # type: ignore[no-untyped-def]
    start,
    inside,
    norm_weight,
    norm_bias,
    eps,
    cos,
    sin,
    norm: tl.constexpr,
    half: tl.constexpr,
):
    """Load both halves of heads, normalized and rotated as the model does."""  # (…, D / 2) each
    dtype = start.dtype.element_ty
    x = tl.load(start, mask=inside, other=0.0)
    y = tl.load(start + half, mask=inside, other=0.0)
    if norm != "none":
        column = tl.arange(0, half)[None, :]
        a, b = x.to(tl.float32), y.to(tl.float32)
        if norm == "layer":
            mean = (tl.sum(a, 1) + tl.sum(b, 1)) / (2 * half)
            a, b = a - mean[:, None], b - mean[:, None]
        square = (tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half)
        deviation = tl.rsqrt(square + eps)[:, None]
        first = tl.load(norm_weight + column).to(tl.float32)
        second = tl.load(norm_weight + half + column).to(tl.float32)
        if norm == "rms-plus-one":
            first, second = first + 1.0, second + 1.0
        a, b = a * deviation * first, b * deviation * second
        if norm_bias is not None:
            a += tl.load(norm_bias + column).to(tl.float32)
            b += tl.load(norm_bias + half + column).to(tl.float32)
        x, y = a.to(dtype), b.to(dtype)
    if cos is not None:
        a, b = x.to(tl.float32), y.to(tl.float32)
        angle = tl.arange(0, half)[None, :]
        c, s = tl.load(cos + angle), tl.load(sin + angle)
        x, y = (a * c - b * s).to(dtype), (b * c + a * s).to(dtype)
    return x, y


@jit
def attend_kernel(  # type: ignore[no-untyped-def]
    qkv,
    keys_values,
    origins,
    lengths,
    cos,
    sin,
    query_weight,
    query_bias,
    key_weight,
    key_bias,
    eps,
    out,
    log_sums,
    scale,
    capacity,
    window,
    norm: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    splits: tl.constexpr,
    precision: tl.constexpr,
    group_tile: tl.constexpr,
    tile: tl.constexpr,
    overlap: tl.constexpr,
):
    """Attend from a new token to the cached ones and itself, and write its keys and values.

    A program computes the query heads of one key-value head, for one split of the positions.
    """
    _wait(overlap)
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group: tl.constexpr = heads // kv_heads
    dim: tl.constexpr = 2 * half
    log2_e: tl.constexpr = 1.4426950408889634
    dtype = qkv.dtype.element_ty
    length = tl.load(lengths + row)
    if cos is not None:
        cos += length * half
        sin += length * half
    start = qkv + row * (heads + 2 * kv_heads) * dim
    member = tl.arange(0, group_tile)
    column = tl.arange(0, half)
    columns = tl.arange(0, dim)
    of_group = (member < group)[:, None]
    query = start + (head * group + member)[:, None] * dim + column[None, :]
    q1, q2 = _head_halves(query, of_group, query_weight, query_bias, eps, cos, sin, norm, half)
    first = length * 0
    if window is not None:
        first = tl.maximum(first, length - window)
    per_split = tl.cdiv(tl.cdiv(length - first, splits), tile) * tile
    begin = first + split * per_split
    end = tl.minimum(begin + per_split, length)
    largest = tl.full([group_tile], -1.0e38, tl.float32)
    total = tl.zeros([group_tile], tl.float32)
    result = tl.zeros([group_tile, dim], tl.float32)
    if split == 0:  # the new token itself
        key = start + (heads + head) * dim + column[None, :]
        new = tl.full([1, half], 1, tl.int1)
        k1, k2 = _head_halves(key, new, key_weight, key_bias, eps, cos, sin, norm, half)
        value = tl.load(start + (heads + kv_heads + head) * dim + columns)
        cached = keys_values + ((row * capacity + length) * 2 * kv_heads + head) * dim
        tl.store(cached + column[None, :], k1)
        tl.store(cached + half + column[None, :], k2)
        tl.store(cached + kv_heads * dim + columns, value)
        score = tl.sum(q1.to(tl.float32) * k1.to(tl.float32), 1)
        score += tl.sum(q2.to(tl.float32) * k2.to(tl.float32), 1)
        largest = score * (scale * log2_e)
        total += 1.0
        result += value.to(tl.float32)[None, :]
    for position in range(begin, end, tile):
        at = position + tl.arange(0, tile)
        inside = at < end
        origin = row
        if origins is not None:
            origin = tl.load(origins + row * capacity + at, mask=inside, other=0).to(tl.int64)
        cached = keys_values + ((origin * capacity + at) * 2 * kv_heads + head) * dim
        key = cached[:, None] + column[None, :]
        k1 = tl.load(key, mask=inside[:, None], other=0.0)
        k2 = tl.load(key + half, mask=inside[:, None], other=0.0)
        value = cached[:, None] + kv_heads * dim + columns[None, :]
        v = tl.load(value, mask=inside[:, None], other=0.0)
        scores = tl.dot(q1, tl.trans(k1), input_precision=precision)
        scores = tl.dot(q2, tl.trans(k2), scores, input_precision=precision)
        scores = tl.where(inside[None, :], scores * (scale * log2_e), -float("inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        rescale = tl.exp2(largest - larger)
        weights = tl.exp2(scores - larger[:, None])
        total = total * rescale + tl.sum(weights, 1)
        result = tl.dot(weights.to(dtype), v, result * rescale[:, None], input_precision=precision)
        largest = larger
    result = result / tl.maximum(total, 1.0e-30)[:, None]
    _start_next(overlap)
    where = (row * splits + split) * heads + head * group + member
    tl.store(
        out + where[:, None] * dim + columns[None, :],
        result.to(out.dtype.element_ty),
        mask=of_group,
    )
    if splits > 1:  # an empty split has total 0 and no weight
        log_sum = largest + tl.log2(tl.maximum(total, 1.0e-30))
        tl.store(log_sums + where, log_sum, mask=member < group)
