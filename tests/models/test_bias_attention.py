"""The kernels of T5's attention compute the plain formula, its gradients included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from firth.models.bias_attention import BiasAttention
from firth.models.masks import Mask
from firth.models.positions import RelativeBias
from tests.kernels import DEVICE, DTYPE, runs_kernels

HEADS, WIDTH = 2, 64


def formula(qkv: Tensor, bias: Tensor, mask: Mask, scale: float) -> Tensor:
    rows = qkv.view(len(mask), mask.max_length, 3, HEADS, WIDTH)
    q, k, v = rows.permute(2, 0, 3, 1, 4)  # (G, H, L, D) each
    scores = scale * q @ k.mT + bias
    if mask.pattern == "causal":
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, float("-inf"))
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2).flatten(0, 1)


@runs_kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [17, 114, 256])
def test_attention_with_a_bias_equals_the_formula(length: int, causal: bool) -> None:
    torch.manual_seed(0)
    mask = (Mask.causal if causal else Mask)([length] * 3, device=DEVICE)
    relative = RelativeBias(32, 128, HEADS, bidirectional=not causal).to(DEVICE)
    torch.nn.init.normal_(relative.weight)
    qkv = torch.randn(3 * length, 3 * HEADS * WIDTH, device=DEVICE).to(DTYPE).requires_grad_()
    gradient = torch.randn(3 * length, HEADS * WIDTH, device=DEVICE).to(DTYPE)
    backend = BiasAttention(mask, relative, DTYPE)
    out = backend.attend_packed(qkv, None, HEADS, 0.125)
    found = torch.autograd.grad(out, (qkv, relative.weight), gradient)
    exact, positions = qkv.detach().double().requires_grad_(), torch.arange(length, device=DEVICE)
    expected = formula(exact, relative(positions, positions).double(), mask, 0.125)
    gradients = torch.autograd.grad(expected, (exact, relative.weight), gradient.double())
    for ours, theirs in zip((out, *found), (expected, *gradients), strict=True):
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()
