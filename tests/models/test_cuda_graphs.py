"""Captured CUDA graphs compute the gradients of eager blocks: on a GPU, and simulated on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from firth.models import attention, attention_choice, cuda_graphs, short_attention, stack
from firth.models.attention import VarlenAttention
from firth.models.cuda_graphs import CudaGraphRunner, round_up
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.training.runtime import remove_graphs
from tests.models import plain_kernels
from tests.models.small import KINDS, build, small
from tests.nightly import pairs_mostly_nightly

UNEVEN = [[7, 3, 9], [8, 8, 2], [6, 4, 8], [5, 5, 5, 5, 2, 2], [9, 8, 1]]
EVEN = [[6, 6], [6, 6], [6, 6]]
WIDE = dict(hidden_size=64, ffn_size=96, num_heads=4, max_positions=128)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here.")


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a GPU's kernels and graph capture; returns one item per replay."""
    calls: list[int] = []

    def capture_graph(work: Callable[[], object], device: object, pool: object) -> Any:
        work()
        half = torch.is_autocast_enabled("cpu")  # a graph keeps the kernels it was captured with

        def replay() -> None:
            calls.append(1)
            with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
                work()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(cuda_graphs, "capture_graph", capture_graph)
    monkeypatch.setattr(VarlenAttention, "attend", plain_kernels.varlen_attention)
    monkeypatch.setattr(attention_choice, "has_varlen_kernels", lambda device, head_dim: True)
    monkeypatch.setattr(attention_choice, "HALF_DTYPES", (torch.float64,))
    for module in (cuda_graphs, attention, stack):
        monkeypatch.setattr(module, "has_equal_lengths", lambda mask: mask.rows.equal_lengths)
    return calls


def batches(lengths: list[list[int]], causal: bool) -> Iterator[tuple[Tensor, Mask]]:
    torch.manual_seed(0)
    for some in lengths:
        mask = Mask.causal(some) if causal else Mask(some)
        yield torch.randint(1, 40, (mask.num_tokens,)), mask


def train(network: Transformer, lengths: list[list[int]], device: str = "cpu") -> list[Tensor]:
    """Compute losses and gradients of some batches; gradients accumulate over two batches."""
    found: list[Tensor] = []
    causal = network.config.architecture == "decoder"
    for i, (tokens, mask) in enumerate(batches(lengths, causal)):
        mask = Mask(mask.lengths, prefix=mask.prefix_lengths, device=device)
        hidden = network(tokens.to(device), mask)
        aims = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype, device=device)
        loss = (hidden * aims.view_as(hidden)).pow(2).sum()
        loss.backward()
        found.append(loss.detach())
        del hidden, loss  # as after a step: nothing is captured while a backward pass is pending
        if i % 2:
            found += [p.grad.clone() for p in network.parameters() if p.grad is not None]
            for parameter in network.parameters():
                parameter.grad = None
    return found


def pair(kind: str) -> tuple[Transformer, Transformer]:
    """Return the same network twice; the second captures CUDA graphs."""
    plain = build(KINDS[kind], dtype=torch.float64).train()
    other = deepcopy(plain)
    other.stack.graph_runner = CudaGraphRunner()
    return plain, other


BATCHES = {"uneven": UNEVEN * 2, "even": EVEN * 2, "mixed": UNEVEN[:2] + EVEN + UNEVEN}
PACKED = ["bert", "modernbert", "albert", "qk-norm", "gpt2", "llama"]


@pytest.mark.parametrize(
    ("kind", "lengths"),
    [*pairs_mostly_nightly(PACKED, BATCHES), ("biased", "even"), ("deberta", "even")],
)
def test_replayed_gradients_are_those_of_eager_blocks(
    kind: str, lengths: str, replays: list[int]
) -> None:
    plain, other = pair(kind)
    right, replayed = train(plain, BATCHES[lengths]), train(other, BATCHES[lengths])
    assert len(replays) >= 4
    torch.testing.assert_close(replayed, right)


@pytest.mark.parametrize("lengths", BATCHES)
def test_short_sequences_replay_with_the_prefixes_of_each_batch(
    lengths: str, replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_choice, "has_tile_kernels", lambda spec: True)
    monkeypatch.setattr(short_attention, "short_attention", plain_kernels.short_attention)
    config = small("decoder", **WIDE, position_embedding="rotary", head_dim=32)
    masks = [
        Mask(some, prefix=[0 if i % 2 else length - step % 3 for i, length in enumerate(some)])
        for step, some in enumerate(BATCHES[lengths])
    ] * 2  # a mask that is used again has its own prefixes
    found: list[list[Tensor]] = []
    for runner in (None, CudaGraphRunner()):
        network = build(config, dtype=torch.float64).train()
        network.stack.graph_runner, network.stack.dense = runner, runner is None
        gradients = []
        for step, mask in enumerate(masks):
            torch.manual_seed(step)
            assert mask.pattern == "prefix"
            network(torch.randint(1, 40, (mask.num_tokens,)), mask).pow(2).sum().backward()
            gradients += [p.grad.clone() for p in network.parameters() if p.grad is not None]
        found.append(gradients)
    assert len(replays) >= 4
    torch.testing.assert_close(found[1], found[0])


def test_unsupported_batches_run_eagerly(replays: list[int]) -> None:
    plain, other = pair("biased")
    torch.testing.assert_close(train(other, UNEVEN * 2), train(plain, UNEVEN * 2))
    assert not replays


def test_layers_may_be_unfrozen(replays: list[int]) -> None:
    plain, other = pair("bert")
    for unfrozen in ("blocks.1", "blocks", "tokens"):
        for network in (plain, other):
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(unfrozen in name)
        torch.testing.assert_close(train(other, UNEVEN * 2), train(plain, UNEVEN * 2))
        for parameter in plain.parameters():
            parameter.grad = None
    assert len(replays) >= 8


def test_two_forward_passes_before_their_backward_passes(replays: list[int]) -> None:
    """The second forward pass must not overwrite the activations of the first."""
    plain, other = pair("bert")
    found = []
    for network in (plain, other):
        train(network, UNEVEN * 2)
        (first, mask), (second, _) = [*batches([UNEVEN[0]] * 2, causal=False)]
        losses = [network(tokens, mask).pow(2).sum() for tokens in (first, second)]
        sum(losses, start=torch.zeros((), dtype=torch.float64)).backward()
        found.append([p.grad for p in network.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_a_failed_capture_falls_back_to_eager_blocks(
    replays: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(work: object, device: object, pool: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(cuda_graphs, "capture_graph", fails)
    plain, other = pair("gpt2")
    torch.testing.assert_close(train(other, EVEN * 2), train(plain, EVEN * 2))
    runner = other.stack.graph_runner
    assert runner is not None
    assert not runner.enabled
    assert remove_graphs(other) == "operation not permitted when stream is capturing"
    assert other.stack.graph_runner is None
    assert not remove_graphs(plain)


def test_a_graph_is_captured_on_the_stream_of_its_gpu_purpose_and_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[object] = []

    @contextmanager
    def enter(place: object) -> Iterator[None]:
        entered.append(place)
        yield

    fakes = dict(CUDAGraph=object, device=enter, stream=enter, Stream=lambda gpu: [gpu])
    fakes |= dict(graph=lambda graph, stream, **_: enter(stream), current_stream=lambda device: "")
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    cuda_graphs._capture_stream.cache_clear()
    for gpu in (torch.device("cuda:0"), torch.device("cuda:1")):
        for purpose in ("training", "generation"):
            cuda_graphs.capture_graph(lambda: entered.append("work"), gpu, purpose=purpose)
            assert entered[-4:] == [gpu, "", [gpu], "work"]
        assert entered[-2] is not entered[-6]
        assert entered[-2] is cuda_graphs._capture_stream(gpu, "generation", get_ident())
        with ThreadPoolExecutor() as other:
            call = partial(cuda_graphs.capture_graph, lambda: None, gpu, purpose="generation")
            other.submit(call).result()
        assert entered[-1] == [gpu]
        assert entered[-1] is not entered[-5]
    cuda_graphs._capture_stream.cache_clear()


def test_without_gradients_nothing_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(CudaGraphRunner, "__call__", lambda *arguments: calls.append(arguments))
    _, other = pair("bert")
    tokens, mask = next(batches(UNEVEN, causal=False))
    with torch.no_grad():
        other(tokens, mask)
    other.eval()(tokens, mask)
    assert not calls


@given(st.integers(1, 1 << 40))
def test_few_lengths_and_little_padding(number: int) -> None:
    assert number <= round_up(number) <= number + number // 8
    assert round_up(round_up(number)) == round_up(number)


# --- on a GPU -----------------------------------------------------------------------------------

SHAPES: dict[str, Any] = {
    "encoder": small("encoder", **WIDE),
    "decoder": small(
        "decoder", **WIDE, norm_position="pre", position_embedding="rotary", qk_norm=True
    ),
    "windowed": small(
        "encoder", **WIDE, position_embedding="rotary", window=8, windowed_layers=(1,)
    ),
    "wide heads": small(
        "decoder", **WIDE, position_embedding="rotary", head_dim=32, gated=True, activation="silu"
    ),
}
LONGER = [[70, 30, 90], [64, 60, 65], [70, 40, 80], [33, 33, 34, 90], [70, 31, 88]] * 3


@on_a_gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [LONGER, [[64, 64]] * 6], ids=["uneven", "even"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_computes_the_same_gradients(
    shape: str, lengths: list[list[int]], compiled: bool
) -> None:
    plain = build(SHAPES[shape]).train().cuda()
    other = deepcopy(plain)
    other.stack.graph_runner = CudaGraphRunner()
    if compiled:
        other.stack.compile_blocks()
    true = train(plain, lengths, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        right, replayed = train(plain, lengths, "cuda"), train(other, lengths, "cuda")
    runner = other.stack.graph_runner
    assert runner is not None
    assert runner.enabled
    assert runner._graphs
    for exact, eager, graph in zip(true, right, replayed, strict=True):
        size = exact.float().norm().clamp(min=1e-3)
        off = (eager - exact).norm() / size, (graph - exact).norm() / size
        assert off[1] < 0.01 + 1.5 * off[0]  # half precision; a compiler rounds less often


@on_a_gpu
def test_a_gpu_draws_dropout_by_the_seed() -> None:
    network = build(small("encoder", **{**WIDE, "dropout": 0.2, "attention_dropout": 0.1}))
    network.train().cuda().stack.graph_runner = CudaGraphRunner()
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
