"""LoRA's joined update of fused projections, its frozen base in bf16, and its compilation."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from firth.adapt.apply import activate, apply
from firth.adapt.lora import LoraConfig, LoraLinear, base_dtype, frozen_matrices
from firth.adapt.saving import fingerprint, named_tensors
from firth.models.masks import Mask
from firth.utils.devices import DeviceSpec
from tests.adapt.harness import fresh, randomized
from tests.models.small import ENCODERS, KINDS, build, run, samples

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


@pytest.mark.parametrize("kind", ["llama", "gpt2"])  # output matrix of its own; tied to embeddings
def test_a_bf16_base_computes_the_same_and_is_restored(kind: str) -> None:
    network = build(KINDS[kind])
    adapted = apply(network, "lora:rank=2", seed=1)
    with torch.no_grad():
        for parameter in adapted.parameters.values():
            parameter += 0.05
    before, tokens = fingerprint(network), torch.tensor([3, 4, 5])

    def gradients() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            loss = network.logits(network(tokens, Mask.causal([3]))).square().sum()
        return list(torch.autograd.grad(loss, list(adapted.parameters.values())))

    right = gradients()
    with frozen_matrices(network, torch.bfloat16):
        assert network.stack.blocks[0].attention.qkv.weight.dtype == torch.bfloat16
        assert network.tokens.weight.dtype == torch.float32
        if kind == "llama":
            assert network.heads["language"].weight.dtype == torch.bfloat16
        tensors = named_tensors(adapted.modules, adapted.heads).values()
        assert {tensor.dtype for tensor in tensors} == {torch.float32}
        assert all(map(torch.equal, gradients(), right))
    assert fingerprint(network) == before


@pytest.mark.parametrize("targets", ["all", "query+value+up", "key+gate"])
def test_the_joined_update_equals_those_of_each_target(
    targets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = fresh("llama")
    adapted = [randomized(network, f"lora:rank=3,targets={targets}", name) for name in "ab"]
    activate(network, {"a": 0.7, "b": 0.3})
    weights = [weight for one in adapted for weight in one.parameters.values()]
    for weight in weights:
        weight.requires_grad_()

    def compute() -> list[torch.Tensor]:
        hidden = torch.cat(run(network, samples("llama")))
        gradients = torch.autograd.grad(hidden.square().sum(), weights, allow_unused=True)
        return [hidden, *(gradient for gradient in gradients if gradient is not None)]

    joined = compute()
    monkeypatch.setattr(LoraLinear, "after", LoraLinear.add_each)
    torch.testing.assert_close(joined, compute(), rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_all_blocks_share_their_compiled_code() -> None:
    """Although no gradient is needed below the first block."""
    torch.compiler.reset()
    network, counter = build(ENCODERS["bert"]).train(), CompileCounterWithBackend("eager")
    apply(network, "lora:rank=2")
    network.stack.compiled = True
    for block in network.stack.blocks:
        block.compile(dynamic=True, backend=counter)
    for lengths in ([4, 4], [6, 6, 6]):
        hidden = network(torch.ones(sum(lengths), dtype=torch.long), Mask(lengths))
        hidden.square().sum().backward()
    assert counter.frame_count == 1
