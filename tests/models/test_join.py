"""An encoder and a decoder joined: what each was stays, and what is new says nothing at first."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.adapt.adapted import apply
from firth.errors import InputError, MismatchError
from firth.inference.generate import greedy
from firth.models.config import ModelConfig
from firth.models.flops import training_flops
from firth.models.formats.directory import family_of, read_network, write_network
from firth.models.initial import initialise
from firth.models.join import crossing, join, joined
from firth.models.masks import Mask
from firth.models.transformer import Transformer, count_parameters
from tests.models.small import DECODERS, ENCODERS, PRE, VOCABULARY, build, small

ROLES = dict(begin_id=1, end_id=2)
# Wider, deeper and with other words than the decoders.
READERS = {
    name: replace(
        config, vocabulary=55, width=24, head_width=0 if name != "mobilebert" else 2, context=20
    )
    for name, config in ENCODERS.items()
}
WRITERS = {
    **{name: replace(config, **ROLES) for name, config in DECODERS.items()},
    "gpt1": small("decoder", norm_place="post", embedding_norm=False, norm_eps=1e-12, **ROLES),
    "post-rms": small("decoder", norm_place="post", norm="rms", norm_eps=1e-12, **ROLES),
    "gemma": small("decoder", norm_place="both", norm="rms-plus-one", norm_eps=1e-6, **ROLES),
    "both": small("decoder", norm_place="both", **ROLES),
    "shared": small("decoder", **PRE, shared=True, **ROLES),
    "three-layers": small("decoder", **PRE, layers=3, window=2, windowed=(2,), **ROLES),
}
PAIRS = [("bert", name) for name in WRITERS] + [(name, "gpt2") for name in READERS]
SOURCES, TARGETS = [5, 1, 9], [4, 6, 1]


def draw(lengths: list[int], vocabulary: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (sum(lengths),), generator=generator)


def parts(reader: str = "bert", writer: str = "gpt2") -> tuple[Transformer, Transformer]:
    dtype = torch.float64
    return build(READERS[reader], dtype=dtype), build(WRITERS[writer], dtype=dtype)


def spoken(network: Transformer) -> Transformer:
    """What is new between the two, drawn so that all of it makes a difference."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name in crossing(network):
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


@pytest.mark.parametrize(("reader", "writer"), PAIRS)
def test_at_first_it_writes_what_the_decoder_alone_writes(reader: str, writer: str) -> None:
    encoder, decoder = parts(reader, writer)
    network, targets = join(encoder, decoder, seed=3).eval(), draw(TARGETS, VOCABULARY)
    ours = logits(network, draw(SOURCES, 55), targets)
    expected = alone(decoder, targets)
    if WRITERS[writer].norm_place == "post":  # there, a norm of what is normal already
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-9)
    else:
        assert torch.equal(ours, expected)
    heard = logits(spoken(network), draw(SOURCES, 55), targets)
    other = logits(network, draw(SOURCES, 55, seed=1), targets)
    assert (heard - other).abs().max() > 1e-3  # and once it listens, what is read matters


@pytest.mark.parametrize("reader", READERS)
def test_it_reads_what_the_encoder_alone_reads(reader: str) -> None:
    encoder, decoder = parts(reader)
    sources, mask = draw(SOURCES, 55), Mask(SOURCES)
    with torch.no_grad():
        ours = join(encoder, decoder).eval().encode(sources, mask)
        assert torch.equal(ours, encoder(sources, mask))
    assert ours.shape == (sum(SOURCES), 24)


def test_what_is_new_learns_at_once_and_depends_on_the_seed_alone() -> None:
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


def test_the_two_it_was_made_of_stay_what_they_are() -> None:
    encoder, decoder = parts()
    before = [tensor.clone() for net in (encoder, decoder) for tensor in net.state_dict().values()]
    with torch.no_grad():
        for parameter in join(encoder, decoder).parameters():
            parameter.zero_()
    after = [tensor for net in (encoder, decoder) for tensor in net.state_dict().values()]
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))


def test_its_parameters_are_those_of_both_and_the_new() -> None:
    encoder, decoder = parts()
    network = join(encoder, decoder)
    head = sum(parameter.numel() for parameter in encoder.heads.parameters())
    # for each of two layers: query and output of 16 x 16, keys and values of 16 x 24, their
    # biases, and a norm of 16
    new = 2 * (2 * (16 * 16 + 16) + 2 * (16 * 24 + 16) + 2 * 16)
    assert sum(network.get_parameter(name).numel() for name in crossing(network)) == new
    both = count_parameters(encoder) - head + count_parameters(decoder)
    assert count_parameters(network) == both + new


@pytest.mark.parametrize(("reader", "writer"), PAIRS)
def test_generation_with_a_cache_finds_what_it_finds_without(reader: str, writer: str) -> None:
    network = spoken(join(*parts(reader, writer))).eval()
    sources = draw(SOURCES, 55).split(SOURCES)
    found = greedy(network, [source.tolist() for source in sources], most=7, end=None)
    for source, written in zip(sources, found, strict=True):
        mask, tokens = Mask([len(source)]), torch.tensor([network.config.start_id])
        with torch.no_grad():
            memory = network.encode(source, mask)
            for _ in range(7):
                causal = Mask.causal([len(tokens)])
                hidden = network(tokens, causal, memory=memory, memory_mask=mask)
                tokens = torch.cat([tokens, network.logits(hidden[-1:]).argmax(-1)])
        assert written == tokens[1:].tolist()


def test_sequences_do_not_see_each_other() -> None:
    network = spoken(join(*parts())).eval()
    sources, targets = draw(SOURCES, 55), draw(TARGETS, VOCABULARY)
    ours = logits(network, sources, targets).split(TARGETS)
    pairs = zip(sources.split(SOURCES), targets.split(TARGETS), ours, strict=True)
    for source, target, together in pairs:
        read, written = Mask([len(source)]), Mask.causal([len(target)])
        with torch.no_grad():
            memory = network.encode(source, read)
            hidden = network(target, written, memory=memory, memory_mask=read)
        torch.testing.assert_close(network.logits(hidden), together, rtol=0, atol=1e-10)


def test_recomputed_activations_give_the_same_gradients() -> None:
    network = spoken(join(*parts())).train()
    found = []
    for on in (False, True):
        network.checkpoint_activations(on)
        network.zero_grad()
        mask, causal = Mask(SOURCES), Mask.causal(TARGETS)
        memory = network.encode(draw(SOURCES, 55), mask)
        hidden = network(draw(TARGETS, VOCABULARY), causal, memory=memory, memory_mask=mask)
        network.logits(hidden).square().sum().backward()
        found.append({n: p.grad for n, p in network.named_parameters() if p.grad is not None})
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)
    assert {"reader_tokens.weight", "tokens.weight"} <= set(found[0])


@pytest.mark.parametrize(("reader", "writer"), PAIRS)
def test_it_goes_through_json_and_files_unharmed(reader: str, writer: str, tmp_path: Path) -> None:
    network = spoken(join(*parts(reader, writer))).eval()
    config = network.config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert family_of(config, network.heads) is None
    assert write_network(network, tmp_path) == "firth"
    again = read_network(tmp_path).eval()
    assert again.config == config
    sources, targets = draw(SOURCES, 55), draw(TARGETS, VOCABULARY)
    assert torch.equal(logits(again, sources, targets), logits(network, sources, targets))


def test_every_side_is_drawn_as_its_own_kind() -> None:
    """The encoder's deviations are the encoder's, also where everything is drawn anew."""
    reader = replace(READERS["bert"], width=64, head_width=0, spread=0.5)
    writer = replace(WRITERS["gpt2"], width=64, head_width=0, spread=0.01)
    network = initialise(Transformer(joined(reader, writer), ["language"]), seed=1)
    drawn = {name: p.detach() for name, p in network.named_parameters() if p.dim() > 1}
    spreads = {name: float(tensor.std()) for name, tensor in drawn.items()}
    for name, spread in spreads.items():
        reads = name.startswith(("encoder.", "reader_tokens."))
        assert spread == pytest.approx(0.5 if reads else 0.01, rel=0.25), name


def test_what_it_computes_is_counted_for_both_sides() -> None:
    reader, writer = READERS["bert"], WRITERS["gpt2"]
    # A token of the one meets 24-wide blocks, of the other 16-wide ones, of the same inner 24.
    reads = 2 * (24 * 4 * 24 + 2 * 24 * 24 + 2 * 24 * 10)
    writes = 2 * (16 * 4 * 16 + 2 * 16 * 24 + 2 * 16 * 10 + 2 * (16 * 16 + 24 * 16))
    head = VOCABULARY * 16
    found = training_flops(joined(reader, writer), 1, 10, 1.0)
    assert found == 6 * ((reads + writes) / 2 + head)


def change(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, **fields}


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "depth": (change(layers=5), "5 cannot be right where the reader has 2."),
    "no reader": (change(architecture="decoder"), "Only an encoder-decoder has a reader"),
    "window": (change(window=1, windowed=[2]), "windowed names layers outside 0 to 1."),
    "bottleneck": (change(bottleneck=8, head_width=2), "no place to look at an encoder"),
    "text": (change(reader="bert"), "The field reader of a model is ModelConfig | None"),
    "switch": (change(reader=True), "The field reader of a model is ModelConfig | None"),
    "inside": (
        lambda values: {**values, "reader": {**values["reader"], "width": "wide"}},
        "In the reader of a model: The field width of a model is int, not 'wide'.",
    ),
    "unknown inside": (
        lambda values: {**values, "reader": {**values["reader"], "wdth": 3}},
        "In the reader of a model: A model has no field 'wdth'; did you mean width?",
    ),
    "nested": (
        lambda values: {**values, "reader": {**values["reader"], "reader": values["reader"]}},
        "The reader of a model cannot have a reader itself.",
    ),
    "a decoder that reads": (
        lambda values: {**values, "reader": {**values["reader"], "architecture": "decoder"}},
        "this encoder-decoder cannot have one that is a decoder.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_shapes_that_cannot_be_are_refused(case: str) -> None:
    alter, sentence = BROKEN[case]
    values = joined(READERS["bert"], WRITERS["gpt2"]).to_dict()
    with pytest.raises(InputError) as error:
        ModelConfig.from_dict(alter(json.loads(json.dumps(values))))
    assert sentence in str(error.value)


def test_a_reader_in_a_reader_in_a_reader_is_no_endless_story() -> None:
    values: dict[str, Any] = joined(READERS["bert"], WRITERS["gpt2"]).to_dict()
    inner = values
    for _ in range(5000):
        inner["reader"] = dict(values["reader"])
        inner = inner["reader"]
    with pytest.raises(InputError, match="cannot have a reader itself"):
        ModelConfig.from_dict(values)


def test_networks_that_cannot_be_joined_are_refused() -> None:
    encoder, decoder = parts()
    with pytest.raises(MismatchError, match=r"first model, .* must be an encoder.* is decoder"):
        join(decoder, decoder)
    with pytest.raises(MismatchError, match=r"second model, .* must be a decoder.* is encoder"):
        join(encoder, encoder)
    with pytest.raises(MismatchError, match="no language head"):
        join(encoder, Transformer(decoder.config))
    config = replace(decoder.config, begin_id=None, end_id=None)
    with pytest.raises(MismatchError, match="no token that begins or ends a text"):
        join(encoder, Transformer(config, ["language"]))
    both = join(encoder, decoder)
    with pytest.raises(MismatchError, match="is encoder-decoder"):
        join(both, decoder)
    apply(decoder, "lora:rank=2")
    with pytest.raises(MismatchError, match=r"Only plain networks .* remove its adapters first"):
        join(encoder, decoder)


@pytest.mark.parametrize(
    ("begin", "end", "roles"), [(7, 8, (7, 8)), (None, 8, (8, 8)), (7, None, (7, 7))]
)
def test_it_begins_with_the_token_that_begins_or_ends_a_text(
    begin: int | None, end: int | None, roles: tuple[int, int]
) -> None:
    config = joined(READERS["bert"], replace(WRITERS["gpt2"], begin_id=begin, end_id=end))
    assert (config.start_id, config.end_id) == roles
