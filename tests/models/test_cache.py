"""A decoder that keeps its keys and values says what it says when it sees everything at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from firth.models.cache import Cache
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from tests.models.small import BOTH, DECODERS, KINDS, Sample, build, run, samples

GENERATORS = [*DECODERS, *BOTH]
PROMPTS = [5, 1, 8]
LENGTHS = [15, 11, 18]
# How many tokens of each sequence a step adds: one, then several, then unequally many.
STEPS = [[1, 1, 1], [1, 1, 1], [1, 1, 1], [4, 4, 4], [1, 3, 2], [2, 0, 1]]


class Writer:
    """A decoder that is fed its sequences piece by piece."""

    def __init__(self, kind: str, lengths: list[int] = LENGTHS, context: int = 18) -> None:
        self.network: Transformer = build(KINDS[kind], dtype=torch.float64)
        self.samples = samples(kind, lengths)
        shape = len(lengths), context
        self.cache = Cache.empty(self.network.config, *shape, dtype=torch.float64)
        self.given: dict[str, Tensor] = {}
        if self.samples[0].source is not None:
            self.cache.memory = Mask([len(sample.source) for sample in self.samples])
            sources = torch.cat([sample.source for sample in self.samples])
            self.given["memory"] = self.network.encode(sources, self.cache.memory)
        self.done = [0] * len(lengths)

    @torch.no_grad()
    def feed(self, counts: list[int], prefix: list[int] | None = None) -> list[Tensor]:
        """The logits of the next few tokens of each sequence."""
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
        """The logits without a cache."""
        outputs = run(self.network, self.samples if batch is None else batch)
        return [self.network.logits(output) for output in outputs]


def close(ours: list[Tensor], expected: list[Tensor]) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", GENERATORS)
def test_pieces_give_what_the_whole_gives(kind: str) -> None:
    writer = Writer(kind)
    pieces = [writer.feed(counts) for counts in [PROMPTS, *STEPS]]
    assert writer.done == LENGTHS
    assert writer.cache.lengths.tolist() == LENGTHS
    close([torch.cat(parts) for parts in zip(*pieces, strict=True)], writer.at_once())


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_cache_with_room_to_spare_gives_the_same(kind: str) -> None:
    writer = Writer(kind, context=32)
    pieces = [writer.feed(counts) for counts in [PROMPTS, *STEPS]]
    close([torch.cat(parts) for parts in zip(*pieces, strict=True)], writer.at_once())


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_its_shapes_and_places_in_memory_never_change(kind: str) -> None:
    writer = Writer(kind)

    def state() -> list[tuple[torch.Size, int]]:
        kept = [part for slot in writer.cache.slots for part in (slot.keys, slot.values)]
        return [(part.shape, part.data_ptr()) for part in [*kept, writer.cache.lengths]]

    before = state()
    for counts in [PROMPTS, *STEPS]:
        writer.feed(counts)
    writer.cache.select(torch.tensor([0, 0, 2]))
    assert state() == before


@pytest.mark.parametrize("kind", DECODERS)
def test_sequences_that_move_go_on_as_if_they_had_always_been_there(kind: str) -> None:
    writer = Writer(kind)
    writer.feed(PROMPTS)
    writer.feed([1, 1, 1])
    rows = torch.tensor([2, 0, 2])
    writer.cache.select(rows)
    # each row keeps the past of another and goes on with its own tokens
    batch = []
    for row, (sample, done) in enumerate(zip(writer.samples, writer.done, strict=True)):
        source = int(rows[row])
        past = writer.samples[source].tokens[: writer.done[source]]
        batch.append(Sample(torch.cat([past, sample.tokens[done : done + 2]]), prefix=0))
    first, second = writer.feed([1, 1, 1]), writer.feed([1, 1, 1])
    ours = [torch.cat(parts) for parts in zip(first, second, strict=True)]
    close(ours, [logits[-2:] for logits in writer.at_once(batch)])


@pytest.mark.parametrize("kind", BOTH)
def test_beams_of_one_source_may_change_places(kind: str) -> None:
    writer = Writer(kind, lengths=[6, 6, 6])
    source = writer.samples[0].source
    assert source is not None
    assert all(len(sample.source) == len(source) for sample in writer.samples)
    writer.samples = [Sample(s.tokens, 0, source=source) for s in writer.samples]
    writer.given["memory"] = writer.network.encode(source.repeat(3), writer.cache.memory)
    writer.feed([3, 3, 3])
    rows = [1, 1, 0]
    writer.cache.select(torch.tensor(rows))
    batch = [
        Sample(torch.cat([writer.samples[row].tokens[:3], sample.tokens[3:5]]), 0, source=source)
        for row, sample in zip(rows, writer.samples, strict=True)
    ]
    close(writer.feed([2, 2, 2]), [logits[-2:] for logits in writer.at_once(batch)])


@pytest.mark.parametrize("kind", DECODERS)
def test_a_prompt_that_sees_both_ways_is_continued_one_way(kind: str) -> None:
    prefixed = f"prefix-{kind}"
    writer = Writer(prefixed)
    prompts = [sample.prefix for sample in writer.samples]
    assert prompts == [7, 5, 9]
    pieces = [writer.feed(prompts, prefix=prompts), *[writer.feed([1, 1, 1]) for _ in range(3)]]
    pieces.append(writer.feed([3, 3, 3]))
    ours = [torch.cat(parts) for parts in zip(*pieces, strict=True)]
    expected = writer.at_once()
    close(ours, [e[: len(o)] for o, e in zip(ours, expected, strict=True)])


@torch.no_grad()
def test_greedy_generation_finds_the_same_tokens() -> None:
    writer = Writer("llama", lengths=[4, 7], context=20)
    logits = writer.feed([4, 7])
    for _ in range(8):
        following = [part[-1].argmax()[None] for part in logits]
        writer.samples = [
            Sample(torch.cat([sample.tokens, token]), prefix=0)
            for sample, token in zip(writer.samples, following, strict=True)
        ]
        logits = writer.feed([1, 1])
    whole = writer.at_once()
    for sample, start, scores in zip(writer.samples, (4, 7), whole, strict=True):
        assert torch.equal(sample.tokens[start:], scores[start - 1 : -1].argmax(-1))


def test_half_precision_keeps_half_the_bytes_and_stays_close() -> None:
    writer = Writer("llama")
    writer.network.float()
    writer.cache = Cache.empty(writer.network.config, 3, 18, dtype=torch.bfloat16)
    pieces = [writer.feed(counts) for counts in [PROMPTS, *STEPS]]
    assert writer.cache.slots[0].keys.element_size() == 2
    ours = torch.cat([torch.cat(parts) for parts in zip(*pieces, strict=True)])
    exact = torch.cat(writer.at_once())
    assert 0 < (ours - exact).abs().max() < 0.05 * exact.abs().max()
