"""The kernel for a residual connection with its norm computes what torch computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firth.models.layers import Residual
from firth.models.triton_norm import add_norm_kernel
from tests.kernels import DEVICE, DTYPE, ON_GPU, runs_kernels
from tests.models.small import small


@runs_kernels
@pytest.mark.parametrize("size", [5, 48])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtypes", [(torch.float32, DTYPE), (DTYPE, DTYPE), (torch.float32,) * 2])
def test_it_adds_and_normalizes(
    size: int, bias: bool, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(size, bias=bias, device=DEVICE)
    nn.init.normal_(norm.weight)
    x, y = (3 + torch.randn(7, size, device=DEVICE).to(dtype) for dtype in dtypes)
    result = torch.empty_like(x)
    given = x, y, norm.weight, norm.bias, result, norm.eps, size
    add_norm_kernel[(7,)](*given, tile=64)
    close = 1e-5 if dtypes[0] == torch.float32 else 1e-2
    assert torch.allclose(result, norm((x + y).float()).to(x.dtype).detach(), atol=close)


@pytest.mark.skipif(not ON_GPU, reason="There is no GPU.")
def test_on_a_gpu_inference_uses_it_and_training_does_not() -> None:
    residual = Residual(small("encoder"), 16).to(DEVICE)
    x = torch.randn(5, 16, device=DEVICE)
    trained = residual(x, torch.sin)
    with torch.no_grad():
        assert torch.allclose(residual(x, torch.sin), trained, atol=1e-5)
        assert torch.equal(residual(x[:0], torch.sin), x[:0])
    assert trained.requires_grad
