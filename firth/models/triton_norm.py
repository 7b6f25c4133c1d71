"""A Triton kernel for a residual connection with the layer norm after it, in inference.

N  tokens     W  hidden size
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from firth.models.hooks import has_global_hooks, has_hooks
from firth.utils.devices import device_spec, has_triton
from firth.utils.triton_language import jit, tl

MAX_SIZE = 8192  # hidden size: a program holds one row


def fits_add_norm(x: Tensor, norm: nn.Module) -> bool:
    """Tell whether the kernel computes this norm, and no gradient is needed."""
    return (
        x.is_cuda
        and type(norm) is nn.LayerNorm
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and x.dtype != torch.float64
        and x.shape[-1] <= MAX_SIZE
        and not (has_hooks(norm) or has_global_hooks())
        and has_triton(device_spec(x.device))
    )


def add_norm(x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
    """Compute norm(x + y) in the type of x; torch would read and write the sum once more.

    Its two kernels were a quarter of the time of embedding texts with BERT-base on an H200.
    """  # (N, W) each
    assert isinstance(norm, nn.LayerNorm)
    x, y = x.contiguous(), y.contiguous()
    result, (rows, size) = torch.empty_like(x), x.shape
    if rows:
        with torch.cuda.device_of(x):
            add_norm_kernel[(rows,)](
                *(x, y, norm.weight, norm.bias, result, norm.eps, size),
                tile=1 << (size - 1).bit_length(),
            )
    return result


# Triton accepts no other annotations than constexpr.
@jit
def add_norm_kernel(  # type: ignore[no-untyped-def]
    x, y, weight, bias, result, eps, size, tile: tl.constexpr
):
    """Compute one row."""
    column = tl.arange(0, tile)
    inside = column < size
    at = tl.program_id(0).to(tl.int64) * size + column
    total = tl.load(x + at, mask=inside, other=0.0) + tl.load(y + at, mask=inside, other=0.0)
    total = total.to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, 0) / size, 0.0)
    value = centred * tl.rsqrt(tl.sum(centred * centred, 0) / size + eps)
    if weight is not None:
        value *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + at, value.to(result.dtype.element_ty), mask=inside)
