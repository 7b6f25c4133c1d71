"""Attention of short sequences: its kernel, where layers use it, and how they call it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from firth.adapt.apply import apply
from firth.models import attention_choice, short_attention
from firth.models.attention import VarlenAttention
from firth.models.attention_choice import AttentionChoice, LayerInputs
from firth.models.attention_recording import AttentionRecorder
from firth.models.kv_cache import KVCache
from firth.models.masks import Mask
from firth.models.positions import Rotary, rotary_angles
from firth.models.transformer_config import TransformerConfig
from firth.models.triton_attention import short_attention as kernel
from firth.models.triton_attention import tile_length
from firth.utils.devices import DeviceSpec, assumed_device
from tests.kernels import DEVICE, DTYPE, runs_kernels
from tests.models import plain_kernels
from tests.models.small import LLAMA, ROTARY, VOCABULARY, build, small

SIZE = dict(hidden_size=64, num_heads=2, ffn_size=48, max_positions=256)
LAYERS = {
    "encoder": small("encoder", **SIZE, **LLAMA, **ROTARY),
    "learned positions": small("encoder", **SIZE),
    "decoder": small("decoder", **SIZE, **LLAMA, **ROTARY, attention_scale=0.3),
    "wide window": small("encoder", **SIZE, **ROTARY, window=63, windowed_layers=(1,)),
}
LENGTHS = [9, 64, 1, 30]


@runs_kernels
@pytest.mark.parametrize("dtype", [DTYPE, torch.float32])  # float32: forward passes alone
@pytest.mark.parametrize(
    ("lengths", "head_dim"), [([5, 16, 1], 32), ([64, 33, 0, 2], 64), ([128, 7, 65], 32)]
)
@pytest.mark.parametrize("pattern", ["full", "causal", "prefix"])
@pytest.mark.parametrize("rotary", [False, True])
def test_the_kernel_computes_attention_and_its_gradient(
    lengths: list[int], head_dim: int, pattern: str, rotary: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tile = tile_length(max(lengths))
    angles: tuple[Tensor, Tensor] | tuple[None, None] = None, None
    if rotary:
        positions = torch.arange(tile, device=DEVICE)
        angles = rotary_angles(positions, Rotary(head_dim, 10_000.0))
    starts = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    prefix = torch.tensor(lengths, device=DEVICE) // 2 if pattern == "prefix" else None
    options = starts, prefix, 2, tile, pattern != "full", 0.2
    qkv = torch.randn(sum(lengths), 6 * head_dim, device=DEVICE).to(dtype).requires_grad_()
    wide = qkv.detach().float().requires_grad_()
    weights = torch.randn(sum(lengths), 2 * head_dim, device=DEVICE).to(dtype)
    found = kernel(qkv, *angles, *options)
    right = plain_kernels.short_attention(wide, *angles, *options)
    torch.testing.assert_close(found.float(), right, atol=0.02, rtol=0.02)
    if dtype == torch.float32:
        return
    [found_gradient] = torch.autograd.grad(found, qkv, weights)
    [right_gradient] = torch.autograd.grad(right, wide, weights.float())
    torch.testing.assert_close(found_gradient.float(), right_gradient, atol=0.03, rtol=0.03)


@runs_kernels
def test_code_is_compiled_once_for_any_number_of_tokens() -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def attend(x: Tensor, starts: Tensor) -> Tensor:
        out: Tensor = kernel(x * 2, None, None, starts, None, 2, 64, False, 0.2)
        return out

    compiled = torch.compile(attend, dynamic=True, backend=counter)
    for lengths in ([5, 6], [9, 3, 2], [20, 7], [33, 2, 3, 4]):
        qkv = torch.randn(sum(lengths), 192, device=DEVICE).to(DTYPE).requires_grad_()
        starts = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
        out = compiled(qkv, starts)
        out.float().sum().backward()
        torch.testing.assert_close(out, attend(qkv, starts))
    assert counter.frame_count == 1


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let layers on the CPU use the plain formula in place of the kernel; its arguments."""
    found: list[Any] = []

    def attend(*arguments: Any) -> Tensor:
        found.append(arguments)
        return plain_kernels.short_attention(*arguments)

    monkeypatch.setattr(short_attention, "short_attention", attend)
    monkeypatch.setattr(attention_choice, "has_tile_kernels", lambda spec: True)
    monkeypatch.setattr(VarlenAttention, "attend", plain_kernels.varlen_attention)
    monkeypatch.setattr(attention_choice, "has_varlen_kernels", lambda device, head_dim: True)
    monkeypatch.setattr(attention_choice, "HALF_DTYPES", (torch.float64,))
    return found


def outputs(config: TransformerConfig, mask: Mask, *, dense: bool) -> list[Tensor]:
    """Compute hidden states and the gradients of all weights."""
    network = build(config, dtype=torch.float64).train()
    network.stack.dense = dense
    torch.manual_seed(0)
    hidden = network(torch.randint(1, VOCABULARY, (mask.num_tokens,)), mask)
    hidden.pow(2).sum().backward()
    return [hidden, *(p.grad for p in network.parameters() if p.grad is not None)]


@pytest.mark.parametrize("prefix", [None, [0, 0, 0, 0], [4, 0, 1, 30]])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_compute_the_same_with_the_kernel(
    kind: str, prefix: list[int] | None, calls: list[Any]
) -> None:
    mask, config = Mask(LENGTHS, prefix=prefix), LAYERS[kind]
    right = outputs(config, mask, dense=True)
    assert not calls
    torch.testing.assert_close(outputs(config, mask, dense=False), right)
    assert len(calls) == config.num_layers


OTHERS = {
    "dropout": dict(attention_dropout=0.1),
    "norms of queries and keys": dict(qk_norm=True),
    "fewer keys": dict(num_kv_heads=1),
    "narrow heads": dict(num_heads=4),
    "window": dict(window=40, windowed_layers=(0, 1)),
    "bias": dict(position_embedding="none", relative_attention="bias"),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_layers_do_not_use_the_kernel(why: str, calls: list[Any]) -> None:
    config = replace(LAYERS["encoder"], **OTHERS[why])
    outputs(config, Mask(LENGTHS), dense=False)
    assert not calls


def test_a_window_matters_for_some_layers_only(calls: list[Any]) -> None:
    config = replace(LAYERS["encoder"], window=40, windowed_layers=(1,))
    mask = Mask(LENGTHS)
    right = outputs(config, mask, dense=True)
    torch.testing.assert_close(outputs(config, mask, dense=False), right)
    assert len(calls) == 1


def test_recorded_layers_and_long_sequences_do_not_use_the_kernel(calls: list[Any]) -> None:
    network = build(LAYERS["encoder"], dtype=torch.float64)
    tokens = torch.ones(129, dtype=torch.long)
    network(tokens, Mask([129]))
    network(tokens[:20], Mask([20]), recorder=AttentionRecorder([0]))
    assert not calls
    network(tokens[:128], Mask([128]))
    assert calls


def test_a_cache_and_trained_prefixes_do_not_use_the_kernel(calls: list[Any]) -> None:
    network, mask = build(LAYERS["decoder"], dtype=torch.float64), Mask.causal([20])
    tokens = torch.ones(20, dtype=torch.long)
    cache = KVCache.empty(network.config, 1, 30, dtype=torch.float64)
    with torch.no_grad():
        network(tokens, mask, cache=cache)
    assert cache.lengths.tolist() == [20]
    apply(network, "prefix:3")
    network.double()(tokens, mask)
    assert not calls


@pytest.mark.parametrize(
    ("precision", "gradients", "expected"),
    [("high", False, 2), ("highest", False, 0), ("high", True, 0)],
)
def test_float32_uses_the_kernel_where_products_may_be_tf32(
    precision: str, gradients: bool, expected: int, calls: list[Any]
) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with torch.set_grad_enabled(gradients):
            build(LAYERS["encoder"])(torch.ones(20, dtype=torch.long), Mask([20]))
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(calls) == expected


GPUS = {  # compute capability, Triton, ROCm -> the kernel is used
    "H100": ((9, 0), True, False, True),
    "H100 without Triton": ((9, 0), False, False, False),
    "A100": ((8, 0), True, False, False),
    "B200": ((10, 0), True, False, False),
    "MI300X": ((9, 4), True, True, False),
}


@pytest.mark.parametrize("name", GPUS)
def test_only_hopper_has_the_kernel(name: str) -> None:
    capability, triton, rocm, expected = GPUS[name]
    spec = DeviceSpec(type="cuda", compute_capability=capability, triton=triton, rocm=rocm)
    x = torch.zeros(sum(LENGTHS), 64, dtype=torch.bfloat16)
    inputs = x, Mask(LENGTHS), LayerInputs()
    choice = AttentionChoice(LAYERS["encoder"], 2, None, *inputs, dense=False, training=True)
    with assumed_device(spec):
        assert choice.has_short_attention(0) is expected
