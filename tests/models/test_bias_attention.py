"""Attention with T5's bias: its kernels, and where layers use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from firth.models import attention_choice, bias_attention
from firth.models.attention import PaddedAttention
from firth.models.bias_attention import BiasAttention
from firth.models.masks import Mask
from firth.models.positions import RelativeBias
from firth.models.triton_bias_attention import prepare_bias
from tests.kernels import DEVICE, DTYPE, runs_kernels
from tests.models import plain_kernels
from tests.models.small import T5, VOCABULARY, build, small

HEADS, WIDTH = 2, 64


@runs_kernels
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [17, 114, 256])
def test_the_kernels_compute_attention_and_its_gradients(length: int, causal: bool) -> None:
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
    bias = relative(positions, positions).double()
    expected, _ = plain_kernels.bias_attention(exact, bias, bias, length, causal, 0.125)
    gradients = torch.autograd.grad(expected, (exact, relative.weight), gradient.double())
    for ours, theirs in zip((out, *found), (expected, *gradients), strict=True):
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


@runs_kernels
def test_code_is_compiled_once_for_any_length() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def attend(qkv: Tensor, bias: Tensor, log2_bias: Tensor, length: int) -> Tensor:
        out: Tensor = bias_attention.bias_attention(qkv * 2, bias, log2_bias, length, False, 0.2)[0]
        return out

    compiled = torch.compile(attend, dynamic=True, backend=counter)
    bias = torch.randn(2, 128, 128, device=DEVICE, requires_grad=True)
    for length, rows in ((10, 2), (20, 3), (18, 4)):
        qkv = torch.randn(rows * length, 192, device=DEVICE).to(DTYPE).requires_grad_()
        compiled(qkv, bias, prepare_bias(bias, length, False, DTYPE), length).sum().backward()
    assert counter.frame_count == 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let layers on the CPU use the plain formula in place of the kernels; its arguments."""
    found: list[Any] = []

    def attend(*arguments: Any) -> tuple[Tensor, Tensor]:
        found.append(arguments)
        return plain_kernels.bias_attention(*arguments)

    monkeypatch.setattr(bias_attention, "bias_attention", attend)
    monkeypatch.setattr(attention_choice, "has_tile_kernels", lambda spec: True)
    monkeypatch.setattr(bias_attention, "has_equal_lengths", lambda mask: mask.rows.equal_lengths)
    monkeypatch.setattr(attention_choice, "has_varlen_kernels", lambda device, head_dim: True)
    monkeypatch.setattr(attention_choice, "HALF_DTYPES", (torch.float64,))
    monkeypatch.setattr(attention_choice, "attention_backend", padded_attention)
    return found


def padded_attention(mask: Mask, **options: Any) -> PaddedAttention:
    return PaddedAttention(mask, 0, options["bias"], dense=False)


@pytest.mark.parametrize(
    ("lengths", "expected"), [([130, 130], 2), ([66, 66], 2), ([66, 65], 0), ([9, 9], 0)]
)
@pytest.mark.parametrize("architecture", ["encoder", "decoder"])
def test_layers_compute_the_same_with_the_kernels(
    architecture: str, lengths: list[int], expected: int, calls: list[Any]
) -> None:
    config = small(architecture, **T5, hidden_size=64, num_heads=2, max_positions=256)
    mask = Mask(lengths) if architecture == "encoder" else Mask.causal(lengths)
    tokens = torch.randint(1, VOCABULARY, (sum(lengths),))
    found = []
    for dense in (True, False):
        network = build(config, dtype=torch.float64).train()
        network.stack.dense = dense
        hidden = network(tokens, mask)
        hidden.pow(2).sum().backward()
        found.append([hidden, *(p.grad for p in network.parameters() if p.grad is not None)])
    torch.testing.assert_close(found[1], found[0])
    assert len(calls) == expected
