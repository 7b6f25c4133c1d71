"""LoraLinear computes what the plain LoRA layer of `firth/adapt/reference.py` computes."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from firth.adapt.injection import attach
from firth.adapt.lora import LoraConfig, LoraLinear
from firth.adapt.reference import ReferenceLora
from firth.adapt.target_modules import TargetModule

INPUTS, OUTPUTS = 6, 5


@settings(max_examples=20, deadline=None)
@given(rank=st.integers(1, 5), alpha=st.floats(0.5, 64.0), bias=st.booleans())
def test_lora_equals_the_reference(rank: int, alpha: float, bias: bool) -> None:
    plain = nn.Linear(INPUTS, OUTPUTS, bias=bias, dtype=torch.float64)
    reference = ReferenceLora(plain, rank, alpha).double()
    host = nn.Linear(INPUTS, OUTPUTS, bias=bias, dtype=torch.float64)
    host.load_state_dict(plain.state_dict())
    target = TargetModule(
        host="up", name="up", covers=("up",), rows=slice(0, OUTPUTS), shape=(OUTPUTS, INPUTS)
    )
    lora = LoraLinear(host, [target], LoraConfig(rank=rank, alpha=alpha), seed=0)
    attach(host, "default", lora)
    x = torch.randn(3, 4, INPUTS, dtype=torch.float64)
    assert torch.equal(host(x), plain(x))  # B is zero before training

    with torch.no_grad():
        reference.b.normal_()
        lora.pairs["up"].a.copy_(reference.a)
        lora.pairs["up"].b.copy_(reference.b)
    torch.testing.assert_close(host(x), reference(x))
    merged = nn.functional.linear(x, lora.merge(host)["weight"], host.bias)
    torch.testing.assert_close(merged, reference(x))

    reference(x).square().sum().backward()
    host(x).square().sum().backward()
    torch.testing.assert_close(lora.pairs["up"].a.grad, reference.a.grad)
    torch.testing.assert_close(lora.pairs["up"].b.grad, reference.b.grad)
