"""Decoding steps in Triton kernels compute what torch computes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.adapt.apply import apply
from firth.inference.generation.decode_slots import CacheSlots
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models import gpu_decoder
from firth.models.gpu_decoder import GpuDecoder, is_supported_network
from firth.models.kv_cache import KVCache
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.quantization.c_library import DISABLE_VARIABLE
from tests.kernels import DEVICE, DTYPE, runs_kernels
from tests.models.small import LLAMA, PRE, ROTARY, build, small
from tests.nightly import mostly_nightly

SIZE = dict(hidden_size=48, num_heads=4, head_dim=32, max_positions=256)
MODELS: dict[str, TransformerConfig] = {
    "gpt2": small("decoder", **PRE, **SIZE, activation="gelu-tanh", head_bias="trained"),
    "llama": small("decoder", **LLAMA, **ROTARY, **SIZE, num_kv_heads=2),
    "qwen3": small("decoder", **LLAMA, **ROTARY, **SIZE, num_kv_heads=1, qk_norm=True),
    "gemma": small(
        "decoder",
        **{**LLAMA, **ROTARY, **SIZE, "norm": "rms-plus-one", "activation": "gelu-tanh"},
        embedding_scale=True,
    ),
    "local": small(
        "decoder", **LLAMA, **ROTARY, **SIZE, window=3, windowed_layers=(1,), local_rope_theta=50.0
    ),
    "odd": small(
        "decoder",
        **{**PRE, **SIZE, "hidden_size": 37, "ffn_size": 23},
        vocab_size=41,
        position_offset=2,
        share_layers=True,
        tie_embeddings=False,
    ),
}
PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30], [4, 4]]


def logits_after(
    network: Transformer, steps: int, rows: int, capacity: int, ours: bool
) -> tuple[Tensor, KVCache]:
    """Return the logits and cache after prompts and some tokens, with our kernels or torch's."""
    torch.manual_seed(0)
    tokens = torch.randint(3, 37, (steps, rows), device=DEVICE)
    lengths = [1 + 7 * i % 5 for i in range(rows)]
    cache = KVCache.empty(network.config, rows, capacity, device=DEVICE, dtype=network.dtype)
    prompts = torch.randint(3, 37, (sum(lengths),), device=DEVICE)
    network(prompts, Mask.causal(lengths, device=DEVICE), cache=cache)
    step = Mask.causal([1] * rows, device=DEVICE)
    logits = torch.empty(rows, network.config.vocab_size, device=DEVICE)
    decoder = GpuDecoder(network, cache) if ours else None
    for given in tokens:
        if decoder is not None:
            decoder.step(given, cache, logits)
            cache.advance(step)
        else:
            logits.copy_(network.logits(network(given, step, cache=cache)))
    return logits, cache


@runs_kernels
@pytest.mark.parametrize(
    ("kind", "rows", "dtype"),
    mostly_nightly(  # the interpreter takes ten seconds for some
        itertools.product(MODELS, [1, 3, 18], [torch.float32, DTYPE]),
        always=[("gpt2", 1, DTYPE), ("llama", 3, DTYPE), ("odd", 1, torch.float32)],
    ),
)
@torch.no_grad()
def test_steps_compute_the_logits_and_the_cache_of_torch(
    kind: str, rows: int, dtype: torch.dtype
) -> None:
    network = build(MODELS[kind]).eval().to(DEVICE, dtype)
    assert is_supported_network(network)
    right, right_cache = logits_after(network, 3, rows, 16, ours=False)
    logits, cache = logits_after(network, 3, rows, 16, ours=True)
    close = 1e-4 if dtype == torch.float32 else 3e-2
    assert torch.allclose(logits, right, atol=close * float(right.abs().max()))
    assert torch.equal(cache.lengths, right_cache.lengths)
    at = right_cache.lengths[0] - 1
    for layer, other in zip(cache.layers, right_cache.layers, strict=True):
        assert torch.allclose(layer.pairs[0, at], other.pairs[0, at], atol=close)


WAYS = {
    "greedy": GenerationConfig(max_new_tokens=12),
    "samples": GenerationConfig(max_new_tokens=12, method="sample", n=2, seed=4),
    "beams": GenerationConfig(max_new_tokens=12, method="beam", beams=3, n=2),
    "penalty": GenerationConfig(max_new_tokens=8, method="beam", beams=2, repetition_penalty=1.3),
}


def generated(network: Transformer, way: GenerationConfig) -> list[list[tuple[Any, float]]]:
    """Return tokens and log-probabilities; prompts end at different steps."""
    results = generate(network, PROMPTS, way, eos_token_id=2, limits=[12, 4, 12, 3])
    return [[(text.tokens, text.logprob) for text in texts] for texts in results]


@runs_kernels
@pytest.mark.parametrize(
    ("kind", "way"),
    # the interpreter takes ten seconds for each
    mostly_nightly(itertools.product(["gpt2", "llama"], WAYS), always=[("gpt2", "beams")]),
)
def test_it_generates_what_torch_generates(
    kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beams are reordered, and prompts that have ended are dropped."""
    monkeypatch.setenv(DISABLE_VARIABLE, "0")
    network = build(MODELS[kind]).eval().to(DEVICE)
    with torch.no_grad():
        network.tokens.weight.normal_(0, 0.6)
    monkeypatch.setattr(gpu_decoder, "is_supported", lambda *given: False)
    right = generated(network, WAYS[way])
    steps: list[int] = []
    plain = GpuDecoder.step

    def counted(self: GpuDecoder, *given: Any) -> None:
        steps.append(1)
        plain(self, *given)

    monkeypatch.setattr(GpuDecoder, "step", counted)
    monkeypatch.setattr(
        gpu_decoder, "is_supported", lambda network, cache: is_supported_network(network)
    )
    ours = generated(network, WAYS[way])
    assert steps
    for one, two in zip(right, ours, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in two]
        assert [p for _, p in one] == pytest.approx([p for _, p in two], abs=1e-3)


@runs_kernels
def test_a_sample_that_ends_at_once_leaves_the_prompt_of_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It overwrites its last position, from which the others do not read the prompt."""
    monkeypatch.setenv(DISABLE_VARIABLE, "0")
    network = build(MODELS["gpt2"]).eval().to(DEVICE)
    way = GenerationConfig(max_new_tokens=3, method="sample", n=3, seed=4)
    [first, *_] = generate(network, PROMPTS[:1], way, eos_token_id=[])[0]
    found = []
    for ours in (False, True):
        monkeypatch.setattr(gpu_decoder, "is_supported", lambda *given, ours=ours: ours)
        [texts] = generate(network, PROMPTS[:1], way, eos_token_id=first.tokens[0])
        found.append([text.logprob for text in texts])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


@runs_kernels
@torch.no_grad()
def test_sequences_join_and_leave_a_running_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLE_VARIABLE, "0")
    network = build(MODELS["llama"]).eval().to(DEVICE)
    found = []
    for ours in (False, True):
        fits = is_supported_network(network) if ours else False
        monkeypatch.setattr(gpu_decoder, "is_supported", lambda *given, fits=fits: fits)
        slots = CacheSlots(network, max_sequences=4, max_tokens=1000)
        slots.add([[5, 9, 14], [31]], limits=[4, 4])
        assert (slots.decoder is not None) == ours
        slots.advance(torch.tensor([4, 6], device=DEVICE))
        slots.add([[7, 7]], limits=[4])
        slots.remove(0)
        slots.advance(torch.tensor([8, 9], device=DEVICE))
        found.append(slots.logits)
    assert torch.allclose(*found, atol=1e-4)


@runs_kernels
@torch.no_grad()
def test_long_caches_are_read_in_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(MODELS["llama"]).eval().to(DEVICE)
    right, _ = logits_after(network, 3, 2, 64, ours=False)
    monkeypatch.setattr(gpu_decoder, "SPLIT_POSITIONS", 16)
    logits, _ = logits_after(network, 3, 2, 64, ours=True)
    assert torch.allclose(logits, right, atol=1e-4 * float(right.abs().max()))


@pytest.mark.parametrize(
    "changed",
    [
        dict(norm_position="post", embedding_norm=True),
        dict(head_dim=8),
        dict(head_transform=True),
        dict(position_embedding="sinusoidal"),
    ],
)
def test_other_models_are_left_to_torch(changed: dict[str, Any]) -> None:
    assert is_supported_network(build(small("decoder", **{**PRE, **SIZE})).eval())
    assert not is_supported_network(build(small("decoder", **{**PRE, **SIZE, **changed})).eval())
    assert not is_supported_network(build(small("decoder", **{**PRE, **SIZE})).train())
    adapted = build(small("decoder", **{**PRE, **SIZE}))
    apply(adapted, "lora")
    assert not is_supported_network(adapted.eval())
