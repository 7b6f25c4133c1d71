"""Recorded attention: the forward pass does not change, and the weights give its output.

`tests/parity/test_families.py` compares the weights of every family with `transformers`.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.adapt.apply import apply
from firth.inference.attention_maps import attention_arrays, attention_maps, virtual_tokens
from firth.models import attention_recording
from firth.models.attention_recording import AttentionRecorder
from firth.models.encoder_decoder import join
from firth.models.masks import Mask
from tests.adapt.test_prompt_tuning import FIRST, GIVEN
from tests.models.small import (
    BOTH,
    DECODERS,
    ENCODERS,
    KINDS,
    T5,
    LargeTensors,
    build,
    run,
    samples,
    small,
)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_recording_changes_no_bit_and_masks_what_the_pattern_masks(kind: str) -> None:
    network, [sample] = build(KINDS[kind]), samples(kind, [12])
    stack, config = network.stack, network.config
    [plain] = run(network, [sample])
    recorder = AttentionRecorder(range(stack.layers))
    [recorded] = run(network, [sample], recorder=recorder)
    assert torch.equal(recorded, plain)
    assert len(recorder.cross) == (stack.layers if kind in BOTH else 0)
    assert list(recorder.self_attention) == list(range(stack.layers))
    for layer, own in recorder.self_attention.items():
        weights = own.weights()  # (H, Q, K)
        window = config.window if layer in config.windowed_layers else 0
        visible = Mask([12], prefix=[sample.prefix]).visible(window)
        assert weights.shape == (config.num_heads, 12, 12)
        assert torch.equal(weights > 0, visible.expand_as(weights))
        torch.testing.assert_close(weights.sum(-1), torch.ones(config.num_heads, 12))


@pytest.mark.parametrize("kind", ["modernbert", "deberta", "llama", "biased", "prefix-windowed"])
@torch.no_grad()
def test_the_weighted_values_are_the_output_of_attention(kind: str) -> None:
    network, [sample] = build(KINDS[kind], dtype=torch.float64), samples(kind, [12])
    module: Any = network.stack.blocks[1].attention
    seen: dict[str, Tensor] = {}
    module.qkv.register_forward_hook(lambda m, args, out: seen.setdefault("qkv", out))
    module.output.register_forward_pre_hook(lambda m, args: seen.update(output=args[0]))
    recorder = AttentionRecorder([1])
    run(network, [sample], recorder=recorder)
    assert list(recorder.self_attention) == [1]
    v = seen["qkv"].split(module.qkv.splits, -1)[2].unflatten(-1, (-1, module.head_dim))
    v = v.repeat_interleave(module.num_heads // module.num_kv_heads, dim=1).transpose(0, 1)
    out = (recorder.self_attention[1].weights().double() @ v).transpose(0, 1).flatten(1)
    torch.testing.assert_close(out, seen["output"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("prompt", kind) for kind in ENCODERS] + [("prefix", kind) for kind in DECODERS],
)
def test_trained_keys_start_as_tokens_before_the_text(strategy: str, kind: str) -> None:
    network, [sample] = build(KINDS[kind], dtype=torch.float64), samples(kind, [9])
    part = network.config.architecture
    longer = attention_arrays(network, torch.cat([FIRST, sample.tokens]))[part]
    apply(network, f"{strategy}:{GIVEN}")
    weights = attention_arrays(network, sample.tokens)[part]
    assert virtual_tokens(network, part) == [f"{strategy} {i}" for i in (1, 2, 3)]
    assert weights.shape[-2:] == (9, 12)
    torch.testing.assert_close(weights, longer[..., 3:, :], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "counts"),
    [("prompt", (3, 0, 3)), ("prefix", (3, 3, 3)), ("prefix:where=cross", (0, 0, 3))],
)
def test_trained_keys_of_an_encoder_decoder(strategy: str, counts: tuple[int, ...]) -> None:
    network = build(KINDS["t5"])
    apply(network, f"{strategy}{',' if ':' in strategy else ':'}{GIVEN}")
    arrays = attention_arrays(network, [5, 6, 7, 8], [0, 9])
    lengths = {"encoder": (4, 4), "decoder": (2, 2), "cross": (2, 4)}  # queries and keys
    for (part, (queries, keys)), count in zip(lengths.items(), counts, strict=True):
        assert arrays[part].shape[-2:] == (queries, keys + count)
        assert len(virtual_tokens(network, part)) == count
        assert abs(arrays[part].sum(-1) - 1).max() < 1e-6


def test_an_encoder_and_a_decoder_with_other_sizes() -> None:
    first = build(small("encoder", num_heads=4), heads=())
    second = build(small("decoder", num_heads=2, num_layers=1, bos_token_id=1))
    network = join(first, second)
    shapes = {part: one.shape for part, one in attention_arrays(network, [5, 6, 7], [1, 8]).items()}
    assert shapes == {"encoder": (2, 4, 3, 3), "decoder": (1, 2, 2, 2), "cross": (1, 2, 2, 3)}
    for chosen in (dict(heads=[-3]), dict(layers=[2])):
        assert set(attention_arrays(network, [5, 6, 7], [1, 8], **chosen)) == {"encoder"}


def test_weights_of_a_layer_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, size = AttentionRecorder([0]), 300
    network = build(small("encoder", **T5))
    with torch.no_grad():
        network.encode(torch.arange(size) % 40, Mask([size]), recorder=recorder)
    recorded = recorder.self_attention[0]
    with LargeTensors(4 * size * size) as large:
        weights = recorded.weights()
    assert len(large.found) == 1
    monkeypatch.setattr(attention_recording, "BIAS_QUERIES", size)
    torch.testing.assert_close(weights, recorded.weights(), rtol=0, atol=1e-6)


def test_one_layer_of_a_long_text_is_in_memory_at_a_time() -> None:
    network = build(small("encoder", num_layers=3, max_positions=2000, num_heads=2))
    seen = list[weakref.ref[Tensor]]()
    for one in attention_maps(network, torch.arange(2000) % 40, layers=[3, 1]):
        assert one.weights.shape == (2, 2000, 2000)
        assert all(earlier() is None for earlier in seen)
        seen.append(weakref.ref(one.weights))
        del one
    assert len(seen) == 2
