"""CUDA graphs of the blocks of a stack, forward and backward, for training.

A fine-tuning step launches about a thousand small kernels, and launching them takes longer than
running them. So batches are padded to one of a few sizes, and for each size the computation between
embedding and heads is captured as two CUDA graphs. The padding is a sequence of its own that no
token attends to, so gradients do not change. Batches are padded before their size is captured too,
so that a resumed run draws the same dropout masks as an uninterrupted one.

N  tokens     S  sequences     W  hidden size
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.models.attention import has_equal_lengths, next_power_of_two
from firth.models.masks import Mask
from firth.utils.foreach import foreach
from firth.utils.rng import Longs

SIZES_PER_DOUBLING = 8  # padded sizes between a number and its double
WARMUP_RUNS = 1  # eager runs of a shape before its capture
MAX_GRAPHS = 32  # captured shapes
ERROR_MODES = {"training": "global", "generation": "thread_local"}  # of a capture, by its purpose

# Hidden states (N, W), their mask and their positions (N,) -> (N, W).
StackForward = Callable[[Tensor, Mask, Tensor], Tensor]


class CudaGraphRunner:
    """Capture and replay the blocks of a stack for each padded batch shape."""

    def __init__(self) -> None:
        self.enabled, self.error = True, ""
        self._reset([])

    def _reset(self, parameters: list[nn.Parameter]) -> None:
        """Free all graphs; `parameters` are the trainable ones."""
        self._parameters = parameters
        self._gradients: list[Tensor] = []  # of the parameters, where graphs accumulate them
        self._runs: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, _CapturedGraph] = {}
        self._pool: Any = None
        self._pending: weakref.ref[Any] | None = None  # a forward pass without its backward pass

    def __deepcopy__(self, memo: object) -> CudaGraphRunner:
        return CudaGraphRunner()

    def stop(self) -> bool:
        """Free all graphs and capture no more (batches stay padded); return if there were any."""
        had_graphs, self.enabled = bool(self._graphs), False
        self._reset(self._parameters)
        return had_graphs

    def __call__(
        self,
        forward: StackForward,
        x: Tensor,
        mask: Mask,
        positions: Tensor,
        weights: Sequence[nn.Parameter],
    ) -> Tensor:
        """Run `forward`, always the same function; the output is valid until the next call."""
        trainable = [weight for weight in weights if weight.requires_grad]
        if list(map(id, trainable)) != list(map(id, self._parameters)):  # layers were unfrozen
            self._reset(trainable)
        padded = _PaddedBatch(mask)
        kind = torch.is_autocast_enabled(x.device.type), x.dtype, x.requires_grad
        graph = self._graph((padded.shape, kind), forward, x, padded)
        if graph is None or self._is_pending():
            out = _run(forward, padded.pad(x), padded.mask, padded.pad(positions))
            return out[: len(x)]
        graph.copy_inputs(x, padded, positions)
        return _Replay.apply(x, graph.anchor, graph, self)  # type: ignore[no-untyped-call]

    def _graph(
        self, shape: Hashable, forward: StackForward, x: Tensor, padded: _PaddedBatch
    ) -> _CapturedGraph | None:
        """Return the graph of a shape, captured now if needed; None: run eagerly."""
        if shape in self._graphs:
            return self._graphs[shape]
        self._runs[shape] = runs = self._runs.get(shape, 0) + 1
        allowed = self.enabled and self._parameters and not self._is_pending()
        if not allowed or runs <= WARMUP_RUNS or len(self._graphs) == MAX_GRAPHS:
            return None
        if (graph := self._capture(forward, x, padded)) is not None:
            self._graphs[shape] = graph
        return graph

    def _is_pending(self) -> bool:
        """Tell whether a replayed forward pass still needs its backward pass."""
        return self._pending is not None and self._pending() is not None

    def _capture(
        self, forward: StackForward, x: Tensor, padded: _PaddedBatch
    ) -> _CapturedGraph | None:
        """Capture a shape; if that fails, set `error`, stop capturing and return None."""
        if not self._gradients:
            self._gradients = [torch.zeros_like(weight) for weight in self._parameters]
            # all graphs share their memory, as only one is pending at a time
            self._pool = torch.cuda.graph_pool_handle() if x.is_cuda else None
        graph = _CapturedGraph(x, padded, self._parameters, self._gradients)
        try:
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                # Eagerly first: fills the mask's cached tensors and compiles the blocks.
                _run(forward, graph.x, graph.mask, graph.positions)
                graph.capture(forward, self._pool)
        except RuntimeError as error:  # out of memory, too
            self.error = str(error).splitlines()[0]
            self.stop()
            return None
        return graph

    def set_pending(self, forward_pass: object) -> None:
        """Note that a replayed forward pass waits for its backward pass."""
        self._pending = weakref.ref(forward_pass)

    def finish(self, forward_pass: object) -> None:
        """Note that the backward pass begins; raise RuntimeError if it ran before."""
        if self._pending is None or self._pending() is not forward_pass:
            raise RuntimeError("The backward pass of a captured CUDA graph can run only once.")
        self._pending = None


class _PaddedBatch:
    """The shape that a batch is padded to; sequences of equal length are not padded."""

    def __init__(self, mask: Mask) -> None:
        self.original, self.equal_lengths = mask, has_equal_lengths(mask)
        self.tokens, self.max_length, sequences = mask.num_tokens, mask.max_length, len(mask)
        if not self.equal_lengths:
            self.tokens = round_up(mask.num_tokens)
            self.max_length = next_power_of_two(mask.max_length)
            self.starts = self._starts()
            sequences = len(self.starts) - 1
        self.shape = mask.pattern, self.equal_lengths, self.tokens, sequences, self.max_length

    def _starts(self) -> Longs:
        """Cumulative lengths of the sequences, then of padding sequences of `max_length`."""
        real = np.concatenate([[0], np.cumsum(self.original.lengths)])
        first = self.original.num_tokens + self.max_length
        padding = np.arange(first, self.tokens, self.max_length)
        starts = np.concatenate([real, padding])
        empty = round_up(len(starts) + 1) - len(starts)  # sequences of length 0
        return np.pad(starts, (0, empty), constant_values=self.tokens)

    def pad(self, x: Tensor) -> Tensor:
        """Append zeros up to the padded size."""  # (n, …) -> (N, …)
        return pad(x, (0, 0) * (x.dim() - 1) + (0, self.tokens - len(x)))

    @cached_property
    def mask(self) -> Mask:
        """The mask with its padding sequences."""
        if self.equal_lengths:
            return self.original
        lengths, prefix = np.diff(self.starts), None
        if self.original.pattern != "full":
            prefix = np.zeros_like(lengths)
            prefix[: len(self.original)] = self.original.prefix_lengths
        return Mask(lengths, prefix=prefix, device=self.original.device)


class _CapturedGraph:
    """The forward and backward CUDA graphs of one shape, and their static tensors."""

    def __init__(
        self,
        x: Tensor,
        padded: _PaddedBatch,
        parameters: Sequence[nn.Parameter],
        gradients: Sequence[Tensor],
    ) -> None:
        """`gradients`: where the backward graph accumulates those of the parameters."""
        self.parameters, self.gradients = parameters, gradients
        self.x = padded.pad(x.detach()).requires_grad_(x.requires_grad)
        self.positions = torch.zeros(padded.tokens, dtype=torch.long, device=x.device)
        # A copy: for later batches its `starts` and `prefix` are overwritten.
        self.mask = padded.mask.copy()
        self.anchor = x.new_zeros((), requires_grad=True)  # autograd needs one, also if x has none
        self.out = self.out_gradient = torch.empty(0)
        self.forward_graph: Any = None
        self.backward_graph: Any = None

    def capture(self, forward: StackForward, pool: Any) -> None:
        """Capture the forward and the backward pass."""

        def run_forward() -> None:
            self.out = _run(forward, self.x, self.mask, self.positions)

        def run_backward() -> None:
            inputs = [*self.parameters, *([self.x] if self.x.requires_grad else [])]
            with torch.autocast(self.x.device.type, enabled=False):  # as in loss.backward()
                found = torch.autograd.grad(self.out, inputs, self.out_gradient, allow_unused=True)
                pairs = zip(self.gradients, found, strict=False)
                used = [(total, new) for total, new in pairs if new is not None]
                foreach("add_", [total for total, _ in used], [new for _, new in used])
            if self.x.requires_grad:
                self.x.grad = found[-1]

        self.forward_graph = capture_graph(run_forward, self.x.device, pool)
        self.out_gradient = torch.zeros_like(self.out)
        self.backward_graph = capture_graph(run_backward, self.x.device, pool)
        self.out = self.out.detach()  # frees the autograd graph; other shapes reuse its memory

    def copy_inputs(self, x: Tensor, padded: _PaddedBatch, positions: Tensor) -> None:
        """Copy a batch to the static tensors."""
        with torch.no_grad():
            for static, given in ((self.x, x), (self.positions, positions)):
                static[: len(given)].copy_(given)
                static[len(given) :].zero_()
        if not padded.equal_lengths:
            self.mask.starts.copy_(padded.mask.starts)
        if self.mask.pattern == "prefix":
            self.mask.prefix.copy_(padded.mask.prefix)

    def backward(self, out_gradient: Tensor) -> Tensor | None:
        """Replay the backward pass: accumulate `.grad` of the parameters, return that of x."""
        size = len(out_gradient)
        self.out_gradient[:size].copy_(out_gradient)
        self.out_gradient[size:].zero_()
        pairs = zip(self.parameters, self.gradients, strict=True)
        separate = [(weight, total) for weight, total in pairs if weight.grad is not total]
        if separate:
            foreach("zero_", [total for _, total in separate])
        self.backward_graph.replay()
        for weight, total in separate:
            weight.grad = total if weight.grad is None else weight.grad.add_(total)
        return None if self.x.grad is None else self.x.grad[:size]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, graph: _CapturedGraph, runner: CudaGraphRunner
    ) -> Tensor:
        graph.forward_graph.replay()
        ctx.graph, ctx.runner = graph, runner
        runner.set_pending(ctx)
        return graph.out.detach()[: len(x)]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.runner.finish(ctx)
        return ctx.graph.backward(gradients[0]), None, None, None


def capture_graph(
    work: Callable[[], object], device: torch.device, pool: Any = None, purpose: str = "training"
) -> Any:
    """Capture a function as a CUDA graph; for `generation`, other threads may go on meanwhile."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
    # The outer stream context restores the current stream if the capture fails.
    with (
        torch.cuda.device(device),
        torch.cuda.stream(stream),
        torch.cuda.graph(
            graph,
            pool=pool,
            stream=_capture_stream(device, purpose, threading.get_ident()),
            capture_error_mode=ERROR_MODES[purpose],
        ),
    ):
        work()
    return graph


@cache
def _capture_stream(device: torch.device, purpose: str, thread: int) -> torch.cuda.Stream:
    """Return the stream of a GPU on which a thread captures the graphs of one purpose.

    Torch's own stream is that of one GPU. Purposes and threads have one each, because torch frees
    the cuBLAS workspaces of all graphs of a stream with the first of them (pytorch issue 193402): a
    graph of generation that ends must not take those of training, or of another served model, with
    it. One for each graph would be too many: torch has 32 streams, and gives them out in turn.
    """
    return torch.cuda.Stream(device)


def _run(forward: StackForward, x: Tensor, mask: Mask, positions: Tensor) -> Tensor:
    """Run without autocast's cache: a replay would use its outdated copies of the weights."""
    kind = x.device.type
    autocast: AbstractContextManager[object] = torch.autocast(
        kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False
    )
    with autocast:
        return forward(x, mask, positions)


def round_up(number: int) -> int:
    """Round up to one of eight numbers in each doubling.

    >>> [round_up(n) for n in (5, 17, 100, 1000, 1025)]
    [5, 18, 104, 1024, 1152]
    """
    step = max(1, next_power_of_two(number + 1) // (2 * SIZES_PER_DOUBLING))
    return -(-number // step) * step
