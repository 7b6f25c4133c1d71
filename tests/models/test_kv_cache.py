"""Decoding with a key/value cache gives the logits of decoding without one."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch
from torch import Tensor

from firth.models.attention import AttentionParams
from firth.models.attention_choice import AttentionChoice
from firth.models.kv_cache import CacheWrite, KVCache
from firth.models.masks import Mask
from firth.models.reference import cached_attention
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from tests.models.small import BOTH, DECODERS, KINDS, Sample, build, run, samples

GENERATORS = [*DECODERS, *BOTH]
PROMPTS = [5, 1, 8]
LENGTHS = [15, 11, 18]
# How many tokens of each sequence a step adds: one, then several, then unequally many.
STEPS = [[1, 1, 1], [1, 1, 1], [1, 1, 1], [4, 4, 4], [1, 3, 2], [2, 0, 1]]


class CachedDecoder:
    """A decoder that processes its sequences in steps."""

    def __init__(self, kind: str, lengths: list[int] = LENGTHS, context: int = 18) -> None:
        self.network: Transformer = build(KINDS[kind], dtype=torch.float64)
        self.samples = samples(kind, lengths)
        shape = len(lengths), context
        self.cache = KVCache.empty(self.network.config, *shape, dtype=torch.float64)
        self.given: dict[str, Tensor] = {}
        if self.samples[0].source is not None:
            self.cache.memory = Mask([len(sample.source) for sample in self.samples])
            sources = torch.cat([sample.source for sample in self.samples])
            self.given["memory"] = self.network.encode(sources, self.cache.memory)
        self.done = [0] * len(lengths)

    @torch.no_grad()
    def feed(self, counts: list[int], prefix: list[int] | None = None) -> list[Tensor]:
        """Return the logits of the next tokens of each sequence."""
        pieces = [
            sample.tokens[done : done + count]
            for sample, done, count in zip(self.samples, self.done, counts, strict=True)
        ]
        mask = Mask(counts, prefix=prefix or [0] * len(counts))
        hidden = self.network(torch.cat(pieces), mask, cache=self.cache, **self.given)
        self.given = {}  # the cache keeps what it needs of the source
        self.done = [done + count for done, count in zip(self.done, counts, strict=True)]
        return list(self.network.logits(hidden).split(counts))

    @torch.no_grad()
    def at_once(self, batch: list[Sample] | None = None) -> list[Tensor]:
        """Return the logits without a cache."""
        outputs = run(self.network, self.samples if batch is None else batch)
        return [self.network.logits(output) for output in outputs]


def close(ours: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("context", [18, 32])
@pytest.mark.parametrize("kind", GENERATORS)
def test_cached_steps_equal_one_uncached_pass(kind: str, context: int) -> None:
    decoder = CachedDecoder(kind, context=context)
    pieces = [decoder.feed(counts) for counts in [PROMPTS, *STEPS]]
    assert decoder.done == LENGTHS
    assert decoder.cache.lengths.tolist() == LENGTHS
    close([torch.cat(parts) for parts in zip(*pieces, strict=True)], decoder.at_once())


class ReferenceAttention:
    """Attention with the plain cache of `reference.py`, for the layers of a network in turn."""

    def __init__(self, config: TransformerConfig) -> None:
        empty = torch.empty(0, config.num_kv_heads, config.head_dim, dtype=torch.float64)
        self.caches = [(empty, empty)] * config.num_layers
        self.layers = cycle(range(config.num_layers))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, params: AttentionParams) -> Tensor:
        i = next(self.layers)
        out, self.caches[i] = cached_attention(q, k, v, self.caches[i], params.scale)
        return out


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_cached_uncached_and_reference_are_equal(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [[5], [1], [1], [4]]
    cached, plain = CachedDecoder(kind, lengths=[11]), CachedDecoder(kind, lengths=[11])
    fast = torch.cat([cached.feed(counts)[0] for counts in steps])
    reference = ReferenceAttention(plain.network.config)
    monkeypatch.setattr(CacheWrite, "write", lambda self, k, v: (k, v))
    monkeypatch.setattr(AttentionChoice, "self_attention", lambda *arguments: reference)
    slow = torch.cat([plain.feed(counts)[0] for counts in steps])
    monkeypatch.undo()
    assert [len(keys) for keys, _ in reference.caches] == [11] * len(reference.caches)
    close([fast, slow], cached.at_once() * 2)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_shapes_and_addresses_never_change(kind: str) -> None:
    decoder = CachedDecoder(kind)

    def state() -> list[tuple[torch.Size, int]]:
        kept = [part for layer in decoder.cache.layers for part in (layer.keys, layer.values)]
        return [(part.shape, part.data_ptr()) for part in [*kept, decoder.cache.lengths]]

    before = state()
    for counts in [PROMPTS, *STEPS]:
        decoder.feed(counts)
    decoder.cache.select(torch.tensor([0, 0, 2]))
    assert state() == before


@pytest.mark.parametrize("kind", DECODERS)
def test_selected_sequences_continue_correctly(kind: str) -> None:
    decoder = CachedDecoder(kind)
    decoder.feed(PROMPTS)
    decoder.feed([1, 1, 1])
    rows = torch.tensor([2, 0, 2])
    decoder.cache.select(rows)
    # each row keeps the past of another and goes on with its own tokens
    batch = []
    for row, (sample, done) in enumerate(zip(decoder.samples, decoder.done, strict=True)):
        source = int(rows[row])
        past = decoder.samples[source].tokens[: decoder.done[source]]
        batch.append(Sample(torch.cat([past, sample.tokens[done : done + 2]]), prefix=0))
    first, second = decoder.feed([1, 1, 1]), decoder.feed([1, 1, 1])
    ours = [torch.cat(parts) for parts in zip(first, second, strict=True)]
    close(ours, [logits[-2:] for logits in decoder.at_once(batch)])


@pytest.mark.parametrize("kind", BOTH)
def test_beams_of_one_source_may_be_reordered(kind: str) -> None:
    decoder = CachedDecoder(kind, lengths=[6, 6, 6])
    source = decoder.samples[0].source
    assert source is not None
    assert all(len(sample.source) == len(source) for sample in decoder.samples)
    decoder.samples = [Sample(s.tokens, 0, source=source) for s in decoder.samples]
    decoder.given["memory"] = decoder.network.encode(source.repeat(3), decoder.cache.memory)
    decoder.feed([3, 3, 3])
    rows = [1, 1, 0]
    decoder.cache.select(torch.tensor(rows))
    batch = [
        Sample(torch.cat([decoder.samples[row].tokens[:3], sample.tokens[3:5]]), 0, source=source)
        for row, sample in zip(rows, decoder.samples, strict=True)
    ]
    close(decoder.feed([2, 2, 2]), [logits[-2:] for logits in decoder.at_once(batch)])


@pytest.mark.parametrize("kind", DECODERS)
def test_a_bidirectional_prompt_is_continued_causally(kind: str) -> None:
    prefixed = f"prefix-{kind}"
    decoder = CachedDecoder(prefixed)
    prompts = [sample.prefix for sample in decoder.samples]
    assert prompts == [7, 5, 9]
    pieces = [decoder.feed(prompts, prefix=prompts), *[decoder.feed([1, 1, 1]) for _ in range(3)]]
    pieces.append(decoder.feed([3, 3, 3]))
    ours = [torch.cat(parts) for parts in zip(*pieces, strict=True)]
    expected = decoder.at_once()
    close(ours, [e[: len(o)] for o, e in zip(ours, expected, strict=True)])


def test_half_precision_keeps_half_the_bytes_and_stays_close() -> None:
    decoder = CachedDecoder("llama")
    decoder.network.float()
    decoder.cache = KVCache.empty(decoder.network.config, 3, 18, dtype=torch.bfloat16)
    pieces = [decoder.feed(counts) for counts in [PROMPTS, *STEPS]]
    assert decoder.cache.layers[0].keys.element_size() == 2
    ours = torch.cat([torch.cat(parts) for parts in zip(*pieces, strict=True)])
    exact = torch.cat(decoder.at_once())
    assert 0 < (ours - exact).abs().max() < 0.05 * exact.abs().max()
