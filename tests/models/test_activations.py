"""Gated activations: the kernel for their gradient."""

from __future__ import annotations

import pytest
import torch

from firth.models.activations import ACTIVATIONS, gated_activation
from firth.models.triton_activations import fast_gated_activation, gated_backward
from tests.kernels import DEVICE, DTYPE, runs_kernels


@runs_kernels
@pytest.mark.filterwarnings("ignore:overflow")  # of numpy in Triton's interpreter
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
def test_the_kernel_computes_the_gradient(activation: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    up = (3 * torch.randn(37, 96, device=DEVICE)).to(dtype)
    gradient = torch.randn(37, 48, device=DEVICE).to(dtype)
    wide = up.double().requires_grad_()
    out = gated_activation(wide, activation)
    [right] = torch.autograd.grad(out, wide, gradient.double())
    close = dict(atol=1e-5, rtol=1e-5) if dtype == torch.float32 else dict(atol=0.03, rtol=0.01)
    found = gated_backward(gradient, up, activation)
    torch.testing.assert_close(found, right.to(dtype), **close)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_compiled_code_computes_the_same_gradient(activation: str) -> None:
    up = torch.randn(300, 96, device="cuda", requires_grad=True)
    weights = torch.randn(300, 48, device="cuda")
    plain, compiled = (
        torch.autograd.grad(function(up, activation), up, weights)[0]
        for function in (gated_activation, torch.compile(fast_gated_activation))
    )
    torch.testing.assert_close(compiled, plain, atol=1e-5, rtol=1e-5)
