"""A joined encoder-decoder equals its decoder until cross-attention is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.adapt.apply import apply
from firth.formats.huggingface.directory import family_of, read_network, write_network
from firth.inference.generation.token_generation import greedy_decode
from firth.models.encoder_decoder import cross_attention_names, join, joined_config
from firth.models.flops import training_flops
from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import InputError, MismatchError
from tests.models.small import DECODERS, ENCODERS, PRE, VOCABULARY, build, small
from tests.nightly import mostly_nightly

ROLES = dict(bos_token_id=1, eos_token_id=2)
# Other hidden sizes, depths and vocabularies than the decoders.
ENCODER_KINDS = {
    name: replace(
        config,
        vocab_size=55,
        hidden_size=24,
        head_dim=0 if name != "mobilebert" else 2,
        max_positions=20,
    )
    for name, config in ENCODERS.items()
}
DECODER_KINDS = {
    **{name: replace(config, **ROLES) for name, config in DECODERS.items()},
    "gpt1": small("decoder", norm_position="post", embedding_norm=False, norm_eps=1e-12, **ROLES),
    "post-rms": small("decoder", norm_position="post", norm="rms", norm_eps=1e-12, **ROLES),
    "gemma": small("decoder", norm_position="both", norm="rms-plus-one", norm_eps=1e-6, **ROLES),
    "both": small("decoder", norm_position="both", **ROLES),
    "shared": small("decoder", **PRE, share_layers=True, **ROLES),
    "three-layers": small("decoder", **PRE, num_layers=3, window=2, windowed_layers=(2,), **ROLES),
}
PAIRS = [("bert", name) for name in DECODER_KINDS] + [(name, "gpt2") for name in ENCODER_KINDS]
OFTEN = PAIRS[::3]
SOURCES, TARGETS = [5, 1, 9], [4, 6, 1]


def draw(lengths: list[int], vocabulary: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (sum(lengths),), generator=generator)


def parts(
    encoder_kind: str = "bert", decoder_kind: str = "gpt2"
) -> tuple[Transformer, Transformer]:
    dtype = torch.float64
    return build(ENCODER_KINDS[encoder_kind], dtype=dtype), build(
        DECODER_KINDS[decoder_kind], dtype=dtype
    )


def with_random_cross_attention(network: Transformer) -> Transformer:
    """Add noise to all cross-attention weights."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in cross_attention_names(network):
            parameter = network.get_parameter(name)
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += 0.3 * noise
    return network


@torch.no_grad()
def logits(network: Transformer, sources: Tensor, targets: Tensor) -> Tensor:
    read, written = Mask(SOURCES), Mask.causal(TARGETS)
    memory = network.encode(sources, read)
    return network.logits(network(targets, written, memory=memory, memory_mask=read))


@torch.no_grad()
def alone(decoder: Transformer, targets: Tensor) -> Tensor:
    return decoder.logits(decoder(targets, Mask.causal(TARGETS)))


@pytest.mark.parametrize(("encoder_kind", "decoder_kind"), PAIRS)
def test_initial_logits_are_the_decoder_s(encoder_kind: str, decoder_kind: str) -> None:
    encoder, decoder = parts(encoder_kind, decoder_kind)
    network, targets = join(encoder, decoder, seed=3).eval(), draw(TARGETS, VOCABULARY)
    ours = logits(network, draw(SOURCES, 55), targets)
    expected = alone(decoder, targets)
    if DECODER_KINDS[decoder_kind].norm_position == "post":
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)
    else:
        assert torch.equal(ours, expected)
    with_source = logits(with_random_cross_attention(network), draw(SOURCES, 55), targets)
    other = logits(network, draw(SOURCES, 55, seed=1), targets)
    assert (with_source - other).abs().max() > 1e-3


@pytest.mark.parametrize("encoder_kind", ENCODER_KINDS)
def test_the_encoder_output_is_unchanged(encoder_kind: str) -> None:
    encoder, decoder = parts(encoder_kind)
    sources, mask = draw(SOURCES, 55), Mask(SOURCES)
    with torch.no_grad():
        ours = join(encoder, decoder).eval().encode(sources, mask)
        assert torch.equal(ours, encoder(sources, mask))
    assert ours.shape == (sum(SOURCES), 24)


def test_new_weights_have_gradients_and_depend_on_the_seed() -> None:
    encoder, decoder = parts()
    network, same, other = (join(encoder, decoder, seed=seed) for seed in (1, 1, 2))
    for (name, first), second in zip(network.named_parameters(), same.parameters(), strict=True):
        assert torch.equal(first, second), name
    query = "decoder.blocks.0.cross.query.weight"
    assert not torch.equal(network.get_parameter(query), other.get_parameter(query))
    mask, causal = Mask(SOURCES), Mask.causal(TARGETS)
    memory = network.encode(draw(SOURCES, 55), mask)
    hidden = network(draw(TARGETS, VOCABULARY), causal, memory=memory, memory_mask=mask)
    network.logits(hidden).square().sum().backward()
    gradient = network.get_parameter("decoder.blocks.0.cross.output.weight").grad
    assert gradient is not None
    assert gradient.abs().max() > 0


def test_the_two_models_are_copied() -> None:
    encoder, decoder = parts()
    before = [tensor.clone() for net in (encoder, decoder) for tensor in net.state_dict().values()]
    with torch.no_grad():
        for parameter in join(encoder, decoder).parameters():
            parameter.zero_()
    after = [tensor for net in (encoder, decoder) for tensor in net.state_dict().values()]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_parameter_count() -> None:
    encoder, decoder = parts()
    network = join(encoder, decoder)
    head = sum(parameter.numel() for parameter in encoder.heads.parameters())
    # for each of two layers: query and output of 16 x 16, keys and values of 16 x 24, their
    # biases, and a norm of 16
    new = 2 * (2 * (16 * 16 + 16) + 2 * (16 * 24 + 16) + 2 * 16)
    assert (
        sum(network.get_parameter(name).numel() for name in cross_attention_names(network)) == new
    )
    both = count_parameters(encoder) - head + count_parameters(decoder)
    assert count_parameters(network) == both + new


@pytest.mark.parametrize(("encoder_kind", "decoder_kind"), mostly_nightly(PAIRS, always=OFTEN))
def test_cached_generation_equals_uncached(encoder_kind: str, decoder_kind: str) -> None:
    network = with_random_cross_attention(join(*parts(encoder_kind, decoder_kind))).eval()
    sources = draw(SOURCES, 55).split(SOURCES)
    found = greedy_decode(
        network, [source.tolist() for source in sources], max_new_tokens=7, eos_token_id=None
    )
    for source, written in zip(sources, found, strict=True):
        mask, tokens = Mask([len(source)]), torch.tensor([network.config.decoder_start_token_id])
        with torch.no_grad():
            memory = network.encode(source, mask)
            for _ in range(7):
                causal = Mask.causal([len(tokens)])
                hidden = network(tokens, causal, memory=memory, memory_mask=mask)
                tokens = torch.cat([tokens, network.logits(hidden[-1:]).argmax(-1)])
        assert written == tokens[1:].tolist()


@pytest.mark.parametrize(("encoder_kind", "decoder_kind"), mostly_nightly(PAIRS, always=OFTEN))
def test_saving(encoder_kind: str, decoder_kind: str, tmp_path: Path) -> None:
    network = with_random_cross_attention(join(*parts(encoder_kind, decoder_kind))).eval()
    config = network.config
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert family_of(config, network.heads) is None
    assert write_network(network, tmp_path) == "firth"
    again = read_network(tmp_path).eval()
    assert again.config == config
    sources, targets = draw(SOURCES, 55), draw(TARGETS, VOCABULARY)
    assert torch.equal(logits(again, sources, targets), logits(network, sources, targets))


def test_encoder_and_decoder_have_their_own_init_std() -> None:
    """Also when all weights are initialized together."""
    encoder = replace(ENCODER_KINDS["bert"], hidden_size=64, head_dim=0, init_std=0.5)
    decoder = replace(DECODER_KINDS["gpt2"], hidden_size=64, head_dim=0, init_std=0.01)
    network = initialise(Transformer(joined_config(encoder, decoder), ["language"]), seed=1)
    drawn = {name: p.detach() for name, p in network.named_parameters() if p.dim() > 1}
    stds = {name: float(tensor.std()) for name, tensor in drawn.items()}
    for name, std in stds.items():
        of_encoder = name.startswith(("encoder.", "encoder_tokens."))
        assert std == pytest.approx(0.5 if of_encoder else 0.01, rel=0.25), name


def test_flops_of_both_stacks() -> None:
    encoder, decoder = ENCODER_KINDS["bert"], DECODER_KINDS["gpt2"]
    # A token of the one meets 24-wide blocks, of the other 16-wide ones, of the same inner 24.
    reads = 2 * (24 * 4 * 24 + 2 * 24 * 24 + 2 * 24 * 10)
    writes = 2 * (16 * 4 * 16 + 2 * 16 * 24 + 2 * 16 * 10 + 2 * (16 * 16 + 24 * 16))
    head = VOCABULARY * 16
    found = training_flops(joined_config(encoder, decoder), 1, 10, 1.0)
    assert found == 6 * ((reads + writes) / 2 + head)


def change(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, **fields}


def change_encoder(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, "encoder": {**values["encoder"], **fields}}


# Changes that make a config impossible, and what the error must name.
BROKEN: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], tuple[str, ...]]] = {
    "depth": (change(num_layers=5), ("num_layers", "5", "2")),
    "no encoder": (change(architecture="decoder"), ("encoder-decoder", "decoder")),
    "window": (change(window=1, windowed_layers=[2]), ("windowed_layers", "0 to 1")),
    "bottleneck": (change(bottleneck_size=8, head_dim=2), ("bottleneck_size", "encoder")),
    "text": (change(encoder="bert"), ("encoder", "TransformerConfig | None", "'bert'")),
    "inside": (change_encoder(hidden_size="wide"), ("encoder", "hidden_size", "int", "'wide'")),
    "nested": (
        lambda values: change_encoder(encoder=values["encoder"])(values),
        ("encoder", "cannot have"),
    ),
    "two decoders": (change_encoder(architecture="decoder"), ("encoder-decoder", "decoder")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_impossible_configs_are_rejected(case: str) -> None:
    alter, facts = BROKEN[case]
    values = joined_config(ENCODER_KINDS["bert"], DECODER_KINDS["gpt2"]).to_dict()
    with pytest.raises(InputError) as error:
        TransformerConfig.from_dict(alter(json.loads(json.dumps(values))))
    assert all(fact in str(error.value) for fact in facts), str(error.value)


def test_deeply_nested_encoders_are_rejected() -> None:
    values: dict[str, Any] = joined_config(ENCODER_KINDS["bert"], DECODER_KINDS["gpt2"]).to_dict()
    inner = values
    for _ in range(5000):
        inner["encoder"] = dict(values["encoder"])
        inner = inner["encoder"]
    with pytest.raises(InputError, match="encoder"):
        TransformerConfig.from_dict(values)


def test_models_that_cannot_be_joined_are_rejected() -> None:
    encoder, decoder = parts()
    with pytest.raises(MismatchError, match=r"first model must be an encoder.* is decoder"):
        join(decoder, decoder)
    with pytest.raises(MismatchError, match=r"second model must be a decoder.* is encoder"):
        join(encoder, encoder)
    with pytest.raises(MismatchError, match="no language head"):
        join(encoder, Transformer(decoder.config))
    config = replace(decoder.config, bos_token_id=None, eos_token_id=None)
    with pytest.raises(MismatchError, match=r"bos_token_id.*eos_token_id"):
        join(encoder, Transformer(config, ["language"]))
    both = join(encoder, decoder)
    with pytest.raises(MismatchError, match="is encoder-decoder"):
        join(both, decoder)
    apply(decoder, "lora:rank=2")
    with pytest.raises(MismatchError, match="adapters"):
        join(encoder, decoder)


@pytest.mark.parametrize(
    ("begin", "end", "roles"), [(7, 8, (7, 8)), (None, 8, (8, 8)), (7, None, (7, 7))]
)
def test_the_decoder_starts_with_bos_or_eos(
    begin: int | None, end: int | None, roles: tuple[int, int]
) -> None:
    config = joined_config(
        ENCODER_KINDS["bert"],
        replace(DECODER_KINDS["gpt2"], bos_token_id=begin, eos_token_id=end),
    )
    assert (config.decoder_start_token_id, config.eos_token_id) == roles
