"""Blocks that are recorded and replayed learn what plain ones learn: on a GPU, and as if on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from firth.models import attention, recording, stack
from firth.models.attention import How, Packed
from firth.models.masks import Mask
from firth.models.recording import Recorder, rounded
from firth.models.transformer import Transformer
from tests.models.small import KINDS, build, small

UNEVEN = [[7, 3, 9], [8, 8, 2], [6, 4, 8], [5, 5, 5, 5, 2, 2], [9, 8, 1]]
EVEN = [[6, 6], [6, 6], [6, 6]]
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")


def one_by_one(self: Packed, q: Tensor, k: Tensor, v: Tensor, how: How) -> Tensor:
    """What variable-length kernels compute, sequence by sequence, from where each begins."""
    starts, parts = self.starts[0].tolist(), []
    assert starts[-1] == len(q)
    for begin, end in pairwise(starts):
        assert end - begin <= self.longest[0]
        rows = [part[begin:end].transpose(0, 1) for part in (q, k, v)]
        rows[1:] = [part.repeat_interleave(len(rows[0]) // len(part), 0) for part in rows[1:]]
        place = torch.arange(end - begin)
        apart = place[:, None] - place
        seen = apart >= 0 if self.causal else torch.ones_like(apart, dtype=torch.bool)
        if self.window[0] is not None:
            seen &= (apart <= self.window[0]) & (-apart <= self.window[1])
        scores = (rows[0] @ rows[1].mT * how.scale).masked_fill(~seen, float("-inf"))
        parts.append((scores.softmax(-1) @ rows[2]).transpose(0, 1))
    return torch.cat(parts)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As on a GPU: kernels for sequences end to end and of one length; how often one is asked."""
    asked: list[int] = []

    def recorded(work: Callable[[], object], pool: object) -> SimpleNamespace:
        work()
        half = torch.is_autocast_enabled("cpu")  # a graph has the kernels it was recorded with

        def replay() -> None:
            asked.append(1)
            with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                work()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(recording, "recorded", recorded)
    monkeypatch.setattr(Packed, "attend", one_by_one)
    monkeypatch.setattr(stack, "packs", lambda device, width: True)
    monkeypatch.setattr(stack, "HALVES", (torch.float64,))
    for module in (recording, attention, stack):
        monkeypatch.setattr(module, "evenly", lambda mask: mask.rows.even)
    return asked


def streams(lengths: list[list[int]], causal: bool) -> Iterator[tuple[Tensor, Mask]]:
    torch.manual_seed(0)
    for some in lengths:
        mask = Mask.causal(some) if causal else Mask(some)
        yield torch.randint(1, 40, (mask.tokens,)), mask


def learn(network: Transformer, lengths: list[list[int]], device: str = "cpu") -> list[Tensor]:
    """The gradients of some streams, one after the other; those of each pair are added up."""
    found: list[Tensor] = []
    causal = network.config.architecture == "decoder"
    for i, (tokens, mask) in enumerate(streams(lengths, causal)):
        mask = Mask(mask.lengths, prefix=mask._prefix, device=device)
        hidden = network(tokens.to(device), mask)
        aims = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype, device=device)
        loss = (hidden * aims.view_as(hidden)).pow(2).sum()
        loss.backward()
        found.append(loss.detach())
        del hidden, loss  # as after a step: nothing is recorded while a gradient may be asked for
        if i % 2:
            found += [p.grad.clone() for p in network.parameters() if p.grad is not None]
            for parameter in network.parameters():
                parameter.grad = None
    return found


def pair(kind: str) -> tuple[Transformer, Transformer]:
    """The same network twice, of which the second is recorded."""
    plain = build(KINDS[kind], dtype=torch.float64).train()
    other = deepcopy(plain)
    other.record_blocks()
    return plain, other


@pytest.mark.parametrize("kind", ["bert", "modernbert", "albert", "qk-norm", "gpt2", "llama"])
@pytest.mark.parametrize("lengths", [UNEVEN * 2, EVEN * 2, UNEVEN[:2] + EVEN + UNEVEN])
def test_what_is_replayed_learns_the_same(
    kind: str, lengths: list[list[int]], replays: list[int]
) -> None:
    plain, other = pair(kind)
    right, said = learn(plain, lengths), learn(other, lengths)
    assert len(replays) >= 4
    torch.testing.assert_close(said, right)


@pytest.mark.parametrize("kind", ["biased", "deberta"])
def test_what_is_added_to_scores_is_learned(kind: str, replays: list[int]) -> None:
    plain, other = pair(kind)
    torch.testing.assert_close(learn(other, EVEN * 2), learn(plain, EVEN * 2))
    assert len(replays) >= 4


def test_streams_of_other_kinds_are_told_each_time(replays: list[int]) -> None:
    plain, other = pair("biased")
    torch.testing.assert_close(learn(other, UNEVEN * 2), learn(plain, UNEVEN * 2))
    assert not replays


def test_layers_may_be_thawed(replays: list[int]) -> None:
    plain, other = pair("bert")
    for thawed in ("blocks.1", "blocks", "tokens"):
        for network in (plain, other):
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(thawed in name)
        torch.testing.assert_close(learn(other, UNEVEN * 2), learn(plain, UNEVEN * 2))
        for parameter in plain.parameters():
            parameter.grad = None
    assert len(replays) >= 8


def test_two_streams_before_their_gradients(replays: list[int]) -> None:
    """The second one of a shape must not write over what the first one needs."""
    plain, other = pair("bert")
    found = []
    for network in (plain, other):
        learn(network, UNEVEN * 2)
        (first, mask), (second, _) = [*streams([UNEVEN[0]] * 2, causal=False)]
        losses = [network(tokens, mask).pow(2).sum() for tokens in (first, second)]
        sum(losses, start=torch.zeros((), dtype=torch.float64)).backward()
        found.append([p.grad for p in network.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_where_recording_fails_it_is_told_each_time(
    replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(work: object, pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "recorded", fails)
    plain, other = pair("gpt2")
    torch.testing.assert_close(learn(other, EVEN * 2), learn(plain, EVEN * 2))
    recorder = other.stack.recorder
    assert recorder is not None
    assert not recorder.records
    assert other.unrecorded == "operation not permitted when stream is capturing"
    assert not plain.unrecorded


def test_without_gradients_nothing_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Recorder, "__call__", never)
    _, other = pair("bert")
    tokens, mask = next(streams(UNEVEN, causal=False))
    with torch.no_grad():
        other(tokens, mask)
    other.eval()(tokens, mask)


@given(st.integers(1, 1 << 40))
def test_few_lengths_and_little_padding(number: int) -> None:
    assert number <= rounded(number) <= number + number // 8
    assert rounded(rounded(number)) == rounded(number)


# --- on a GPU -----------------------------------------------------------------------------------

WIDE = dict(width=64, inner=96, heads=4, context=128)
SHAPES: dict[str, Any] = {
    "encoder": small("encoder", **WIDE),
    "decoder": small("decoder", **WIDE, norm_place="pre", positions="rotary", qk_norm=True),
    "windowed": small("encoder", **WIDE, positions="rotary", window=8, windowed=(1,)),
}
LONGER = [[70, 30, 90], [64, 60, 65], [70, 40, 80], [33, 33, 34, 90], [70, 31, 88]] * 3


@on_a_gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [LONGER, [[64, 64]] * 6], ids=["uneven", "even"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_the_same(shape: str, lengths: list[list[int]], compiled: bool) -> None:
    plain = build(SHAPES[shape]).train().cuda()
    other = deepcopy(plain)
    other.record_blocks()
    if compiled:
        other.compile_blocks()
    true = learn(plain, lengths, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        right, said = learn(plain, lengths, "cuda"), learn(other, lengths, "cuda")
    recorder = other.stack.recorder
    assert recorder is not None
    assert recorder.records
    assert recorder._tapes
    for exact, plainly, replayed in zip(true, right, said, strict=True):
        size = exact.float().norm().clamp(min=1e-3)
        off = (plainly - exact).norm() / size, (replayed - exact).norm() / size
        assert off[1] < 0.01 + 1.5 * off[0]  # half precision; a compiler rounds less often


@on_a_gpu
def test_a_gpu_draws_dropout_by_the_seed() -> None:
    network = build(small("encoder", **{**WIDE, "dropout": 0.2, "attention_dropout": 0.1}))
    network.train().cuda().record_blocks()
    mask, tokens = Mask([70, 30], device="cuda"), torch.randint(1, 40, (100,), device="cuda")
    seen = []
    for seed in (1, 1, 1, 2, 1):
        torch.manual_seed(seed)
        with torch.autocast("cuda", torch.bfloat16):
            hidden = network(tokens, mask)
        hidden.float().pow(2).sum().backward()
        seen.append(hidden.detach().clone())
        del hidden
    torch.testing.assert_close(seen[0], seen[1])  # plain, and replayed
    torch.testing.assert_close(seen[2], seen[4])
    assert not torch.equal(seen[2], seen[3])
