"""Gated activations in compiled code, with a Triton kernel for their gradient.

N  tokens of the batch     F  inner size of the feed-forward layer
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firth.models.activations import gated_activation
from firth.utils.triton_language import jit, tl

BLOCK = 1024  # numbers of a program of the kernel


def fast_gated_activation(up: Tensor, activation: str) -> Tensor:
    """Apply a gated activation; in compiled code on a GPU, the kernel computes its gradient."""
    if up.is_cuda and torch.compiler.is_compiling() and up.dtype != torch.float64:
        return _CompiledGated.apply(up, activation)  # type: ignore[no-untyped-call]
    return gated_activation(up, activation)


class _CompiledGated(torch.autograd.Function):
    """A gated activation in code that torch.compile makes, with a kernel of its own for gradients.

    That of torch.compile computes each half of the gradient for both halves: 0.63 ms instead of
    0.25 ms (65,536 tokens, F = 1,376, H200).
    """

    @staticmethod
    def forward(ctx: Any, up: Tensor, activation: str) -> Tensor:
        ctx.save_for_backward(up)
        ctx.activation = activation
        return gated_activation(up, activation)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gated_backward(gradients[0], *ctx.saved_tensors, ctx.activation), None


@torch.library.custom_op(
    "firth::gated_backward",
    mutates_args=(),
    schema="(Tensor gradient, Tensor up, str activation) -> Tensor",
)
def gated_backward(gradient: Tensor, up: Tensor, activation: str) -> Tensor:
    """Compute the gradient of `up`."""  # (N, F), (N, 2F) -> (N, 2F)
    up, gradient = up.contiguous(), gradient.contiguous()
    result, count = torch.empty_like(up), gradient.numel()
    with torch.cuda.device_of(up):
        _backward_kernel[(-(-count // BLOCK),)](
            *(up, gradient, result, count, gradient.shape[-1]), activation=activation, block=BLOCK
        )
    return result


@gated_backward.register_fake
def _(gradient: Tensor, up: Tensor, activation: str) -> Tensor:
    return torch.empty_like(up, memory_format=torch.contiguous_format)


# Triton accepts no other annotations than constexpr.
@jit
def _backward_kernel(  # type: ignore[no-untyped-def]
    up, gradient, result, count, width, activation: tl.constexpr, block: tl.constexpr
):
    """Compute the gradients of some inputs of the activation and of their gates."""
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = index < count
    element = index // width * 2 * width + index % width  # in the flattened `up`
    x = tl.load(up + element, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(up + element + width, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + index, mask=inside, other=0.0).to(tl.float32)
    value, slope = differentiate(x, activation)
    tl.store(result + element, g * gate * slope, mask=inside)
    tl.store(result + element + width, g * value, mask=inside)


@jit
def differentiate(x, activation: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute an activation and its derivative."""
    if activation == "gelu":
        cumulative = 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)  # sqrt(1/2)
        density = tl.exp(-0.5 * x * x) * 0.3989422804014327  # sqrt(1 / (2 pi))
        value, slope = x * cumulative, cumulative + x * density
    elif activation == "gelu-tanh":
        scaled = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi)
        gate = tl.sigmoid(scaled)  # 0.5 + 0.5 tanh(scaled / 2)
        growth = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        value, slope = x * gate, gate * (1.0 + x * (1.0 - gate) * growth)
    elif activation == "silu":
        gate = tl.sigmoid(x)
        value, slope = x * gate, gate * (1.0 + x * (1.0 - gate))
    else:
        tl.static_assert(activation == "relu")
        slope = tl.where(x > 0, 1.0, 0.0)
        value = x * slope
    return value, slope
