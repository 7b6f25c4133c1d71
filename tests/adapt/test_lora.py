"""The frozen base of LoRA in bf16: where it is, and that it changes nothing but memory."""

from __future__ import annotations

import pytest
import torch

from firth.adapt.apply import apply
from firth.adapt.lora import LoraConfig, base_dtype, frozen_matrices
from firth.adapt.saving import fingerprint, named_tensors
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.utils.devices import DeviceSpec
from tests.models.small import small

T4, A100 = (DeviceSpec(type="cuda", compute_capability=(major, 0)) for major in (7, 8))
CPU = DeviceSpec(cpu_flags=frozenset({"amx_bf16"}))


@pytest.mark.parametrize(
    ("options", "precision", "spec", "dtype"),
    [
        (LoraConfig(), "bf16", A100, torch.bfloat16),
        (LoraConfig(), "fp32", A100, torch.float32),
        (LoraConfig(), "fp16", T4, torch.float32),
        (LoraConfig(), "bf16", CPU, torch.float32),
        (LoraConfig(dora=True), "bf16", A100, torch.float32),
        (None, "bf16", A100, torch.float32),
    ],
)
def test_which_dtype(options: object, precision: str, spec: DeviceSpec, dtype: torch.dtype) -> None:
    assert base_dtype(options, precision, spec) == dtype


def test_a_bf16_base_computes_the_same_and_is_restored() -> None:
    network = Transformer(small("decoder"), ["language"])
    adapted = apply(network, "lora:rank=2", seed=1)
    with torch.no_grad():
        for parameter in adapted.parameters.values():
            parameter += 0.05
    before, tokens = fingerprint(network), torch.tensor([3, 4, 5])

    def gradients() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            loss = network(tokens, Mask.causal([3])).square().sum()
        return list(torch.autograd.grad(loss, list(adapted.parameters.values())))

    right = gradients()
    with frozen_matrices(network, torch.bfloat16):
        assert network.stack.blocks[0].attention.qkv.weight.dtype == torch.bfloat16
        tensors = named_tensors(adapted.modules, adapted.heads).values()
        assert {tensor.dtype for tensor in tensors} == {torch.float32}
        assert all(map(torch.equal, gradients(), right))
    assert fingerprint(network) == before
