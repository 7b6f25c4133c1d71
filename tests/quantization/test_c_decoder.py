"""Decoding steps in C compute what torch computes."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from firth.inference.generation.decode_state import CachedDecodeState
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.transformer import Transformer
from firth.models.transformer_config import RopeScaling, TransformerConfig
from firth.quantization import c_decoder as decoder
from firth.quantization import c_library as library
from firth.quantization.c_decoder import MAX_SEQUENCES, is_supported
from firth.quantization.int8 import to_int8
from tests.models.small import KINDS, LLAMA, PRE, ROTARY, build, small
from tests.nightly import mostly_nightly, pairs_mostly_nightly
from tests.quantization import needs_native

PROMPTS = [[5, 9, 14, 3, 27, 8], [31], [7, 7, 12, 30]]
MORE: dict[str, TransformerConfig] = {
    "post": small("decoder", norm_position="post", activation="relu", head_bias="trained"),
    "both": small(
        "decoder", **{**LLAMA, **ROTARY, "norm_position": "both", "activation": "gelu-tanh"}
    ),
    "gemma": small(
        "decoder",
        **{**LLAMA, **ROTARY, "norm": "rms-plus-one"},
        embedding_scale=True,
        head_dim=8,
        head_scale=True,
    ),
    "shared": small(
        "decoder", **PRE, share_layers=True, position_embedding="none", qkv_bias=False, gated=True
    ),
    "local": small(
        "decoder", **LLAMA, **ROTARY, window=2, windowed_layers=(1,), local_rope_theta=50.0
    ),
    "scaled": small(
        "decoder",
        **LLAMA,
        **ROTARY,
        window=2,
        windowed_layers=(1,),
        scale_local_rope=False,
        rope_scaling=RopeScaling(
            kind="yarn", factor=4.0, original_positions=8, slow=0.2, fast=1.0, attention_factor=1.5
        ),
    ),
    "transformed": small("decoder", **LLAMA, **ROTARY, head_transform=True, head_activation="gelu"),
    "deeper": small("decoder", **PRE, num_decoder_layers=3),
    "odd": small("decoder", **PRE, vocab_size=37, ffn_size=23, position_offset=2, max_positions=40),
}
KNOWN = {name: KINDS[name] for name in ("gpt2", "llama", "windowed", "wide-heads")} | MORE


def generated(network: Transformer, monkeypatch: pytest.MonkeyPatch, native: bool) -> Any:
    """Return tokens and log-probabilities of several generation methods."""
    monkeypatch.setenv(library.DISABLE_VARIABLE, "1" if native else "0")
    ways = (
        GenerationConfig(max_new_tokens=20),
        GenerationConfig(max_new_tokens=20, method="beam", beams=2),
        GenerationConfig(max_new_tokens=20, method="sample", n=2, seed=4),
    )
    found = [generate(network, PROMPTS, way, eos_token_id=2) for way in ways]
    return [[(text.tokens, text.logprob) for text in texts] for some in found for texts in some]


@needs_native
@pytest.mark.parametrize(("kind", "int8"), pairs_mostly_nightly(KNOWN, [False, True]))
def test_it_generates_what_torch_generates(
    kind: str, int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(KNOWN[kind])
    network = to_int8(network) if int8 else network.eval()
    right = generated(network, monkeypatch, native=False)
    steps: list[int] = []
    plain = decoder.CDecoder.step

    def counted(self: decoder.CDecoder, *given: Any) -> None:
        steps.append(1)
        plain(self, *given)

    monkeypatch.setattr(decoder.CDecoder, "step", counted)
    ours = generated(network, monkeypatch, native=True)
    assert len(steps) >= 20
    for one, two in zip(right, ours, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in two]
        loose = 1e-2 if int8 else 1e-4  # in C, what int8 weights are multiplied with is not rounded
        assert [p for _, p in one] == pytest.approx([p for _, p in two], abs=loose)


@needs_native
@pytest.mark.parametrize("seed", mostly_nightly(range(6), always=[0]))
def test_sequences_end_where_torch_ends_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a frequent end token, low limits for some, and ten sequences."""
    torch.manual_seed(seed)
    network = build(MORE["odd"]).eval()
    with torch.no_grad():
        network.tokens.weight.normal_(0, 0.6)
    prompts = [torch.randint(3, 37, (n,)).tolist() for n in (1, 4, 2, 7, 3, 3, 5, 2, 6, 1)]
    room = [1, 25, 2, 25, 25, 9, 3, 20, 25, 17]
    found, ended = [], set()
    for native in ("0", "1"):
        monkeypatch.setenv(library.DISABLE_VARIABLE, native)
        for end in range(12):
            some = generate(
                network,
                prompts,
                GenerationConfig(max_new_tokens=25),
                eos_token_id=[end, end + 12],
                limits=room,
            )
            found.append([(text.tokens, text.finish_reason) for [text] in some])
            ended |= {text.finish_reason for [text] in some}
    assert found[:12] == found[12:]
    assert ended == {"end", "length"}


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("threads", mostly_nightly([1, 2, 5], always=[2]))
@pytest.mark.parametrize("kind", mostly_nightly(["llama", "post", "shared"], always=["llama"]))
def test_threads_make_no_difference(
    kind: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(KNOWN[kind]).eval()
    before = torch.get_num_threads()
    monkeypatch.setattr(decoder, "NUMBERS_PER_THREAD", 1)
    right = generated(network, monkeypatch, native=False)
    try:
        torch.set_num_threads(threads)
        for _ in range(3):
            ours = generated(network, monkeypatch, native=True)
            assert [[t for t, _ in one] for one in ours] == [[t for t, _ in one] for one in right]
    finally:
        torch.set_num_threads(before)


@needs_native
@pytest.mark.parametrize("weights", ["plain", "transposed", "int8"])
def test_logits_do_not_depend_on_the_batch_or_the_threads(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes that are no multiples of those of blocks, tiles and vector registers."""
    shape = small("decoder", **LLAMA, **ROTARY)
    network = build(replace(shape, hidden_size=200, ffn_size=275, vocab_size=1043)).eval()
    if weights == "int8":
        network = to_int8(network)
    elif weights == "transposed":
        for module in network.stack.blocks.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = module.weight.data.t().contiguous().t()
    monkeypatch.setattr(decoder, "NUMBERS_PER_THREAD", 1)
    before = torch.get_num_threads()

    def logits(tokens: range, threads: int) -> torch.Tensor:
        torch.set_num_threads(threads)
        settings, size = GenerationConfig(max_new_tokens=8), len(tokens)
        state = CachedDecodeState(network, [[3]] * size, settings, [8] * size)
        assert state._c_decoder is not None
        state.cache.keys_values.fill_(0.1)
        state._c_decoder.step(torch.tensor(tokens), state.cache, state.logits)
        return state.logits.clone()

    try:
        whole = logits(range(16), 1)
        for size in (1, 2, 3, 4, 5, 7):
            for threads in (1, 2):
                assert torch.equal(logits(range(size), threads), whole[:size])
    finally:
        torch.set_num_threads(before)


@needs_native
def test_threads_do_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = small("decoder", **LLAMA, **ROTARY, head_transform=True, head_activation="gelu")
    network = build(replace(wide, hidden_size=256, ffn_size=64, vocab_size=64)).eval()
    monkeypatch.setattr(decoder, "NUMBERS_PER_THREAD", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        state = CachedDecodeState(
            network, [[3]] * MAX_SEQUENCES, GenerationConfig(max_new_tokens=8), [8] * MAX_SEQUENCES
        )
        assert state._c_decoder is not None
        cache, seen = state.cache, []
        start = cache.lengths.clone()
        for _ in range(300):
            cache.lengths.copy_(start)
            state._c_decoder.step(torch.arange(MAX_SEQUENCES), cache, state.logits)
            seen.append(state.logits.clone())
        assert all(torch.equal(scores, seen[0]) for scores in seen)
    finally:
        torch.set_num_threads(before)


@needs_native
def test_nan_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(KNOWN["gpt2"]).eval()
    last: Any = network.stack.blocks[1]
    with torch.no_grad():
        last.feed_forward.down.weight[3, 4] = float("nan")
    scores = CachedDecodeState(network, [[3]], GenerationConfig(max_new_tokens=3), [3])
    scores.advance(torch.tensor([4]), torch.tensor([False]))
    assert scores._c_decoder is not None
    assert scores.logits.isnan().any()


# The fields of a config: computed by C, left to torch, without effect on generation.
COMPUTED = """architecture vocab_size hidden_size num_layers num_decoder_layers num_heads
    num_kv_heads head_dim ffn_size max_positions position_embedding position_offset rope_theta
    local_rope_theta rope_scaling scale_local_rope embedding_norm embedding_scale norm
    norm_position norm_bias norm_eps
    first_norm activation gated bias qkv_bias qk_norm attention_scale window windowed_layers
    share_layers tie_embeddings head_transform transform_bias head_activation head_bias
    head_scale"""
LEFT_TO_TORCH = """encoder relative_attention relative_buckets relative_max_distance num_segments
    embedding_size trigrams bottleneck_size num_feed_forwards output_embedding_size
    share_encoder_decoder"""
INDIFFERENT = """prefix_lm label_head label_crf labels label_type pooling label_layers
    label_activation label_norm label_bias label_input_layer label_layer_mix
    dropout attention_dropout initialization init_std
    pad_token_id bos_token_id eos_token_id extra_eos_token_ids
    decoder_start_token_id forced_bos_token_id forced_eos_token_id family"""


def test_every_config_field_is_handled_by_c_or_left_to_torch() -> None:
    """A new field belongs into one of these lists, and into `step.c` or `is_supported`."""
    known = " ".join((COMPUTED, LEFT_TO_TORCH, INDIFFERENT)).split()
    assert sorted(known) == sorted(field.name for field in fields(TransformerConfig))


def test_unsupported_models_are_left_to_torch() -> None:
    gpt2 = build(KINDS["gpt2"]).eval()
    assert is_supported(gpt2, 1, 32)
    assert not is_supported(gpt2, MAX_SEQUENCES + 1, 32)
    assert not is_supported(gpt2, 1, 33)  # more than its learned positions
    assert not is_supported(gpt2.train(), 1, 32)
    gpt2.eval()
    for kind in ("bert", "t5", "biased"):
        assert not is_supported(build(KINDS[kind]).eval(), 1, 8)
    assert not is_supported(build(KINDS["gpt2"], dtype=torch.float64).eval(), 1, 8)
    for more in ({"num_segments": 2}, {"embedding_size": 16}, {"trigrams": True}):
        assert not is_supported(build(replace(KINDS["gpt2"], **more)).eval(), 1, 8)
    gpt2.stack.blocks[0].register_forward_hook(lambda *given: None)
    assert not is_supported(gpt2, 1, 8)
    other = build(KINDS["gpt2"]).eval()
    first: Any = other.stack.blocks[0]
    first.attention.output = nn.Sequential(nn.Linear(16, 16))
    assert not is_supported(other, 1, 8)
    with torch.no_grad():
        strided = build(KINDS["gpt2"]).eval()
        strided.tokens.weight.data = torch.randn(40, 32)[:, ::2]
    assert not is_supported(strided, 1, 8)


@needs_native
def test_both_describe_the_same_structures() -> None:
    found = library.load_library()
    assert found is not None
    own = (decoder._Network, decoder._Layer, decoder._Step, decoder.SelectedTokens)
    sizes = (ctypes.c_int64 * len(own)).in_dll(found, "firth_sizes")
    assert list(sizes) == [ctypes.sizeof(kind) for kind in own]


@needs_native
def test_transposed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """As loaded from GPT-2's checkpoints; they are not copied."""
    network = build(replace(KNOWN["llama"], ffn_size=200)).eval()
    right = generated(network, monkeypatch, native=False)
    for block in network.stack.blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = module.weight.data.t().contiguous().t()
    addresses = [weight.data_ptr() for weight in network.parameters()]
    ours = generated(network, monkeypatch, native=True)
    assert [[t for t, _ in one] for one in ours] == [[t for t, _ in one] for one in right]
    assert addresses == [weight.data_ptr() for weight in network.parameters()]


@needs_native
def test_weights_may_be_replaced_on_the_way() -> None:
    network = build(KNOWN["gpt2"]).eval()
    state = CachedDecodeState(network, [[3]], GenerationConfig(max_new_tokens=9), [9])
    assert state._c_decoder is not None
    network.double()
    for _ in range(4):
        state.advance(torch.tensor([4]), torch.tensor([False]))
    assert state.logits.isfinite().all()


@needs_native
def test_several_threads_may_write_with_one_network() -> None:
    network = build(KNOWN["llama"]).eval()
    settings = GenerationConfig(max_new_tokens=12)
    with ThreadPoolExecutor(3) as threads:
        found = list(
            threads.map(
                lambda _: generate(network, PROMPTS, settings, eos_token_id=None), range(30)
            )
        )
    first = [text.tokens for [text] in found[0]]
    assert all([text.tokens for [text] in texts] == first for texts in found)
