"""What blocks compute of a stream, and their gradients, told to a GPU once and then only asked for.

A step of fine-tuning is a thousand small kernels, and asking for each takes longer than computing
it. So the stream is padded to one of few lengths, and all that happens between the embedding and
the heads is recorded for each: two CUDA graphs, there and back. The padding is a sequence of its
own that nobody sees, so what is learned is the same; a stream is padded before it is recorded, too,
so that a run that went on after a stop draws the dropout of one that never stopped.

N  tokens     S  sequences     W  width
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.draws import Longs
from firth.models.attention import evenly, power_of_two
from firth.models.masks import Mask

SIZES = 8  # lengths of a stream in each doubling
PLAIN = 1  # times a shape is computed before it is recorded
MOST = 32  # shapes that are recorded

# A stream (N, W), its mask and the places of its tokens (N,) -> (N, W).
Work = Callable[[Tensor, Mask, Tensor], Tensor]


class Recorder:
    """Replays work on streams of shapes that it knows, and its gradients."""

    def __init__(self) -> None:
        self.records, self.why_not = True, ""
        self._forget([])

    def _forget(self, learned: list[nn.Parameter]) -> None:
        """Begin anew, with these weights."""
        self._learned = learned
        self._sums: list[Tensor] = []  # their gradients, where a GPU adds them up
        self._met: dict[Hashable, int] = {}
        self._tapes: dict[Hashable, _Tape] = {}
        self._pool: Any = None
        self._open: weakref.ref[Any] | None = None  # what is computed and waits for its gradient

    def __deepcopy__(self, memo: object) -> Recorder:
        return Recorder()

    def stop(self) -> bool:
        """Forget all and record no more, though streams are still padded; whether there was any."""
        held, self.records = bool(self._tapes), False
        self._forget(self._learned)
        return held

    def __call__(
        self, work: Work, x: Tensor, mask: Mask, places: Tensor, weights: Sequence[nn.Parameter]
    ) -> Tensor:
        """Do work with these weights, always the same work; what it gives holds until the next."""
        learned = [weight for weight in weights if weight.requires_grad]
        if list(map(id, learned)) != list(map(id, self._learned)):  # layers may be thawed
            self._forget(learned)
        padded = _Padded(mask)
        known = torch.is_autocast_enabled(x.device.type), x.dtype, x.requires_grad
        tape = self._tape((padded.shape, known), work, x, padded)
        if tape is None or self._waits():
            return _done(work, padded.stream(x), padded.mask, padded.stream(places))[: len(x)]
        tape.fill(x, padded, places)
        return _Play.apply(x, tape.anchor, tape, self)  # type: ignore[no-untyped-call]

    def _tape(self, shape: Hashable, work: Work, x: Tensor, padded: _Padded) -> _Tape | None:
        """What is recorded of a shape, now or before."""
        if shape in self._tapes:
            return self._tapes[shape]
        self._met[shape] = met = self._met.get(shape, 0) + 1
        asked = self.records and self._learned and not self._waits()
        if not asked or met <= PLAIN or len(self._tapes) == MOST:
            return None
        if (tape := self._record(work, x, padded)) is not None:
            self._tapes[shape] = tape
        return tape

    def _waits(self) -> bool:
        """Whether something was computed whose gradient may still be asked for."""
        return self._open is not None and self._open() is not None

    def _record(self, work: Work, x: Tensor, padded: _Padded) -> _Tape | None:
        """Let a GPU note what to do; None, from now on, where that does not go."""
        if not self._sums:
            self._sums = [torch.zeros_like(weight) for weight in self._learned]
            self._pool = torch.cuda.graph_pool_handle() if x.is_cuda else None  # one at a time
        tape = _Tape(x, padded, self._learned, self._sums)
        try:
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                # What a mask makes when it is first asked must be there, and all be compiled.
                _done(work, tape.x, tape.mask, tape.places)
                tape.record(work, self._pool)
        except RuntimeError as error:  # too little memory, too
            self.why_not = str(error).splitlines()[0]
            self.stop()
            return None
        return tape

    def opened(self, computed: object) -> None:
        """Something was computed that waits for its gradient."""
        self._open = weakref.ref(computed)

    def close(self, computed: object) -> None:
        """Its gradient is asked for."""
        if self._open is None or self._open() is not computed:
            raise RuntimeError("What was recorded has one gradient, which is asked for only once.")
        self._open = None


class _Padded:
    """The shape that a stream is padded to; sequences of one length are as they are."""

    def __init__(self, mask: Mask) -> None:
        self.given, self.even = mask, evenly(mask)
        self.tokens, self.longest, sequences = mask.tokens, mask.longest, len(mask)
        if not self.even:
            self.tokens, self.longest = rounded(mask.tokens), power_of_two(mask.longest)
            self.starts = self._starts()
            sequences = len(self.starts) - 1
        self.shape = mask.pattern, self.even, self.tokens, sequences, self.longest

    def _starts(self) -> Longs:
        """Where sequences begin; behind them the padding, in pieces no longer than they are."""
        real = np.concatenate([[0], np.cumsum(self.given.lengths)])
        more = np.arange(self.given.tokens + self.longest, self.tokens, self.longest)
        starts = np.concatenate([real, more])
        after = rounded(len(starts) + 1) - len(starts)  # sequences of nothing
        return np.pad(starts, (0, after), constant_values=self.tokens)

    def stream(self, x: Tensor) -> Tensor:
        """A stream with its padding."""  # (n, …) -> (N, …)
        return pad(x, (0, 0) * (x.dim() - 1) + (0, self.tokens - len(x)))

    @cached_property
    def mask(self) -> Mask:
        """Who may see whom."""
        if self.even:
            return self.given
        lengths = np.diff(self.starts)
        prefix = None if self.given.pattern == "full" else np.zeros_like(lengths)
        return Mask(lengths, prefix=prefix, device=self.given.device)


class _Tape:
    """Tensors that stay where they are, and what a GPU does with them."""

    def __init__(
        self, x: Tensor, padded: _Padded, learned: Sequence[nn.Parameter], sums: Sequence[Tensor]
    ) -> None:
        """`sums`: where the gradients of what is learned are added up."""
        self.learned, self.sums = learned, sums
        self.x = padded.stream(x.detach()).requires_grad_(x.requires_grad)
        self.places = torch.zeros(padded.tokens, dtype=torch.long, device=x.device)
        self.mask = padded.mask  # of other streams of its shape, only `starts` will be true
        self.anchor = x.new_zeros((), requires_grad=True)  # for streams that need no gradient
        self.out = self.gradient = torch.empty(0)
        self.there: Any = None
        self.back: Any = None

    def record(self, work: Work, pool: Any) -> None:
        """Let a GPU note the work, there and back."""

        def see() -> None:
            self.out = _done(work, self.x, self.mask, self.places)

        def look_back() -> None:
            wanted = [*self.learned, *([self.x] if self.x.requires_grad else [])]
            with torch.autocast(self.x.device.type, enabled=False):  # as it is outside of a loss
                found = torch.autograd.grad(self.out, wanted, self.gradient, allow_unused=True)
                pairs = [(a, b) for a, b in zip(self.sums, found, strict=False) if b is not None]
                torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
            if self.x.requires_grad:
                self.x.grad = found[-1]

        self.there = recorded(see, pool)
        self.gradient = torch.zeros_like(self.out)
        self.back = recorded(look_back, pool)
        self.out = self.out.detach()  # what was kept for the gradient may be used by other shapes

    def fill(self, x: Tensor, padded: _Padded, places: Tensor) -> None:
        """Take a stream."""
        with torch.no_grad():
            for here, given in ((self.x, x), (self.places, places)):
                here[: len(given)].copy_(given)
                here[len(given) :].zero_()
        if not padded.even:
            self.mask.starts.copy_(padded.mask.starts)

    def learn(self, gradient: Tensor) -> Tensor | None:
        """Add to the gradients of the weights, given that of the stream; gives what came in its."""
        size = len(gradient)
        self.gradient[:size].copy_(gradient)
        self.gradient[size:].zero_()
        pairs = zip(self.learned, self.sums, strict=True)
        apart = [(weight, added) for weight, added in pairs if weight.grad is not added]
        if apart:
            torch._foreach_zero_([added for _, added in apart])
        self.back.replay()
        for weight, added in apart:
            weight.grad = added if weight.grad is None else weight.grad.add_(added)
        return None if self.x.grad is None else self.x.grad[:size]


class _Play(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, tape: _Tape, recorder: Recorder) -> Tensor:
        tape.there.replay()
        ctx.tape, ctx.recorder = tape, recorder
        recorder.opened(ctx)
        return tape.out.detach()[: len(x)]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.recorder.close(ctx)
        return ctx.tape.learn(gradients[0]), None, None, None


def recorded(work: Callable[[], object], pool: Any = None) -> Any:
    """What replays some work on a GPU."""
    graph = torch.cuda.CUDAGraph()
    # Where it fails, torch would go on with the stream that it records.
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
        work()
    return graph


def _done(work: Work, x: Tensor, mask: Mask, places: Tensor) -> Tensor:
    """Work without copies of weights that autocast keeps: they would be old when it is replayed."""
    kind = x.device.type
    half: AbstractContextManager[object] = torch.autocast(
        kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cache_enabled=False
    )
    with half:
        return work(x, mask, places)


def rounded(number: int) -> int:
    """The next of few numbers: eight in each doubling.

    >>> [rounded(n) for n in (5, 17, 100, 1000, 1025)]
    [5, 18, 104, 1024, 1152]
    """
    step = max(1, power_of_two(number + 1) // (2 * SIZES))
    return -(-number // step) * step
