"""Prompts and prefixes equal tokens before the text, also with a key/value cache."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from firth.adapt.apply import activate, apply, remove
from firth.inference.generation.token_generation import greedy_decode
from firth.models import attention
from firth.models.masks import Mask
from firth.models.transformer import max_text_length
from firth.utils.errors import MismatchError
from tests.adapt.harness import NETWORKS, difference, fresh, outputs_of, randomized
from tests.models.small import BOTH, DECODERS, Sample, run, samples
from tests.models.test_kv_cache import LENGTHS, PROMPTS, STEPS, CachedDecoder
from tests.nightly import pairs_mostly_nightly

FIRST = torch.tensor([5, 9, 30])
GIVEN = "length=3,tokens=5+9+30"


def with_tokens_before(sample: Sample, kind: str) -> Sample:
    """Return the same sequence with the tokens before it."""
    if sample.source is not None:
        return replace(sample, source=torch.cat([FIRST, sample.source]))
    zeros = torch.zeros_like(FIRST)
    return Sample(
        torch.cat([FIRST, sample.tokens]),
        sample.prefix + 3 if sample.prefix else 0,
        None if sample.segments is None else torch.cat([zeros, sample.segments]),
    )


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_prompt_starts_as_tokens_before_the_text(kind: str) -> None:
    network, batch = fresh(kind), samples(kind)
    with torch.no_grad():
        words = run(network, [with_tokens_before(sample, kind) for sample in batch])
        wanted = torch.cat([out[-len(sample) :] for out, sample in zip(words, batch, strict=True)])
        apply(network, f"prompt:{GIVEN}")
        assert difference(torch.cat(run(network, batch)), wanted) < 1e-12


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_prefix_starts_as_tokens_before_the_text(kind: str) -> None:
    network, batch = fresh(kind), samples(kind)
    with torch.no_grad():
        words = run(network, [with_tokens_before(sample, kind) for sample in batch])
        apply(network, f"prefix:{GIVEN}")
        assert (
            difference(torch.cat(run(network, batch)), torch.cat([out[3:] for out in words]))
            < 1e-12
        )


@pytest.mark.parametrize("kind", BOTH)
def test_a_cross_attention_prefix_starts_as_tokens_before_the_source(kind: str) -> None:
    network, batch = fresh(kind), samples(kind)
    lengths, sources = [len(sample) for sample in batch], [sample.source for sample in batch]
    with torch.no_grad():
        first = network.encode(FIRST, Mask([3]))
        memory = [part for s in sources for part in (first, network.encode(s, Mask([len(s)])))]
        wanted = network(
            torch.cat([sample.tokens for sample in batch]),
            Mask.causal(lengths),
            memory=torch.cat(memory),
            memory_mask=Mask([3 + len(source) for source in sources]),
        )
        apply(network, f"prefix:{GIVEN},where=cross")
        assert difference(torch.cat(run(network, batch)), wanted) < 1e-12


@pytest.mark.parametrize("kind", BOTH)
def test_each_side_of_a_prefix_matters(kind: str) -> None:
    network = fresh(kind)
    plain, seen = outputs_of(network, kind), []
    for where in ("encoder", "decoder", "cross", "encoder+decoder+cross", ""):
        randomized(network, f"prefix:length=3,where={where}")
        seen.append(outputs_of(network, kind))
        remove(network, "default")
    assert torch.equal(seen[3], seen[4])
    assert min(difference(one, plain) for one in seen) > 1e-4
    assert min(difference(seen[i], seen[j]) for i in range(4) for j in range(i)) > 1e-4


def decoder_with(kind: str, spec: str) -> CachedDecoder:
    """A decoder that is fed piece by piece, with an adapter on it."""
    decoder = CachedDecoder(kind)
    decoder.network = fresh(kind)
    randomized(decoder.network, spec)
    if decoder.given:
        sources = torch.cat([sample.source for sample in decoder.samples])
        decoder.given["memory"] = decoder.network.encode(sources, decoder.cache.memory)
    return decoder


def together(pieces: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(*pieces, strict=True)]


LEARNED = ["prefix:3", "prompt:3", "lora:rank=2", "adapters:reduction=4", "ia3"]


@torch.no_grad()
@pytest.mark.parametrize(("kind", "spec"), pairs_mostly_nightly([*DECODERS, *BOTH], LEARNED))
def test_cached_steps_equal_one_forward_pass(kind: str, spec: str) -> None:
    decoder = decoder_with(kind, spec)
    ours = together([decoder.feed(counts) for counts in [PROMPTS, *STEPS]])
    assert [len(logits) for logits in ours] == LENGTHS
    torch.testing.assert_close(ours, decoder.at_once(), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "spec"), pairs_mostly_nightly(DECODERS, ["prefix:3", "prompt:3"]))
def test_a_bidirectional_text_is_continued_causally(kind: str, spec: str) -> None:
    decoder = decoder_with(f"prefix-{kind}", spec)
    first = [sample.prefix for sample in decoder.samples]
    pieces = [decoder.feed(first, prefix=first), decoder.feed([1, 1, 1]), decoder.feed([3, 3, 3])]
    ours, whole = together(pieces), decoder.at_once()
    for one, all_of_it in zip(ours, whole, strict=True):
        torch.testing.assert_close(one, all_of_it[: len(one)], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", BOTH)
def test_generation_uses_the_prompt(kind: str) -> None:
    network = fresh(kind)
    randomized(network, "prompt:3")
    source = samples(kind)[0].source
    written = greedy_decode(network, [source.tolist()], max_new_tokens=4, eos_token_id=None)[0]
    tokens = torch.tensor([network.config.decoder_start_token_id or 0])
    with torch.no_grad():
        memory, mask = network.encode(source, Mask([len(source)])), Mask([len(source)])
        for token in written:
            seen = network(tokens, Mask.causal([len(tokens)]), memory=memory, memory_mask=mask)
            assert int(network.logits(seen[-1:]).argmax()) == token
            tokens = torch.cat([tokens, torch.tensor([token])])


def test_layers_are_those_of_the_tokens() -> None:
    network = fresh("bert")
    randomized(network, "prompt:3")
    layers: list[Tensor] = []
    tokens = torch.arange(1, 8)
    hidden = network(tokens, Mask([4, 3]), layers=layers)
    assert [len(layer) for layer in layers] == [7, 7, 7]
    assert torch.equal(layers[-1], hidden)


def test_prompts_take_positions_from_the_text() -> None:
    network = fresh("bert")
    apply(network, "prefix:12", name="a")
    assert max_text_length(network) == 20
    tokens = torch.ones(21, dtype=torch.long)
    network(tokens[:20], Mask([20]))
    with pytest.raises(MismatchError, match=r"33.*32"):
        network(tokens, Mask([21]))
    remove(network, "a")
    apply(network, "prompt:12")
    assert max_text_length(network) == 20
    with pytest.raises(MismatchError, match="33"):
        network(tokens, Mask([21]))
    rotary = fresh("modernbert")
    apply(rotary, "prefix:12")
    rotary(tokens, Mask([21]))


def test_initial_tokens_depend_on_the_seed() -> None:
    vectors = []
    for seed in (1, 1, 2):
        adapted = apply(fresh("bert"), "prompt:4", seed=seed)
        vectors.append(adapted.parameters["encoder.prompt.default.vectors"].detach())
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])
    table = fresh("bert").tokens.weight
    assert all((row == table).all(1).any() for row in vectors[0])


def test_prompts_of_two_adapters_are_concatenated() -> None:
    network = fresh("bert")
    apply(network, "prompt:length=2,tokens=5+9", name="a")
    apply(network, "prompt:length=1,tokens=30", name="b")
    activate(network, ["a", "b"])
    both = torch.cat(run(network, samples("bert")))
    other = fresh("bert")
    apply(other, f"prompt:{GIVEN}")
    assert torch.equal(both, torch.cat(run(other, samples("bert"))))


def test_kernels_without_a_prefix_are_not_used() -> None:
    """As on a GPU in half precision, where the packed kernels serve everything else."""
    mask, how = Mask.causal([3, 2]), dict(window=0, bias=None, varlen=True)
    assert isinstance(attention.attention_backend(mask, **how), attention.VarlenAttention)
    assert isinstance(
        attention.attention_backend(mask, **how, prefix_length=2), attention.PaddedAttention
    )
    assert isinstance(
        attention.cross_attention_backend(mask, mask, varlen=True), attention.VarlenAttention
    )
    assert isinstance(
        attention.cross_attention_backend(mask, mask, varlen=True, prefix_length=2),
        attention.PaddedCrossAttention,
    )
