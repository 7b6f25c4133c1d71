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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.draws import Longs
from firth.models.attention import evenly, power_of_two
from firth.models.journey import as_tensor
from firth.models.masks import Mask

SIZES = 8  # lengths of a stream in each doubling
PLAIN = 1  # times a shape is computed before it is recorded
MOST = 32  # shapes that are recorded

# A stream (N, W), its mask and the places of its tokens (N,) -> (N, W).
Work = Callable[[Tensor, Mask, Tensor], Tensor]


class Recorder:
    """Replays work on streams of shapes that it knows, and its gradients."""

    def __init__(self) -> None:
        self.records = True
        self._forget()

    def _forget(self) -> None:
        self._learned: list[nn.Parameter] = []
        self._names: list[int] = []  # which they are
        self._sums: list[Tensor] = []  # their gradients, where the GPU adds them up
        self._met: dict[Hashable, int] = {}
        self._tapes: dict[Hashable, _Tape] = {}
        self._pool: Any = None
        self._open: weakref.ref[Any] | None = None  # what is computed and waits for its gradient

    @property
    def holds(self) -> bool:
        """Whether anything is recorded."""
        return bool(self._tapes)

    def __deepcopy__(self, memo: object) -> Recorder:
        return Recorder()

    def __call__(
        self, work: Work, x: Tensor, mask: Mask, places: Tensor, weights: Sequence[nn.Parameter]
    ) -> Tensor:
        """Do work with these weights, always the same work; only what it returns is seen."""
        learned = [weight for weight in weights if weight.requires_grad]
        names = list(map(id, learned))
        if names != self._names:  # layers may be thawed one after the other
            self._forget()
            self._learned, self._names = learned, names
        padded = _Padded(mask)
        known = torch.is_autocast_enabled(x.device.type), x.dtype, x.requires_grad
        shape = padded.shape, known
        tape = self._tapes.get(shape)
        if tape is None:
            self._met[shape] = self._met.get(shape, 0) + 1
            if self._worth(shape) and (tape := self._record(work, x, padded)):
                self._tapes[shape] = tape
        if tape is None or self._waiting():
            return _done(work, padded.stream(x), padded.mask(), padded.stream(places))[: len(x)]
        tape.fill(x, padded, places)
        anchor = self._sums[0].new_zeros((), requires_grad=True)  # also where x needs no gradient
        return _Play.apply(x, anchor, tape, self)  # type: ignore[no-untyped-call]

    def _worth(self, shape: Hashable) -> bool:
        return (
            self.records
            and bool(self._learned)
            and self._met[shape] > PLAIN
            and len(self._tapes) < MOST
            and not self._waiting()
        )

    def _waiting(self) -> bool:
        """Whether something was computed whose gradient may still be asked for."""
        return self._open is not None and self._open() is not None

    def _record(self, work: Work, x: Tensor, padded: _Padded) -> _Tape | None:
        """Let a GPU note what to do; None, from now on, where that does not go."""
        if not self._sums:
            self._sums = [torch.zeros_like(weight) for weight in self._learned]
            self._pool = _pool()
        tape = _Tape(x, padded)
        try:
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                with torch.no_grad():  # what a mask makes when it is first asked must be there
                    _done(work, tape.x, tape.mask, tape.places)
                tape.record(work, self._learned, self._sums, self._pool)
        except RuntimeError:  # too little memory, too
            self.records = False
            return None
        return tape

    def learn(self, tape: _Tape, gradient: Tensor) -> Tensor | None:
        """Add to the gradients of the weights, given that of a stream; gives the stream's own."""
        found, sums, size = self._learned, self._sums, len(gradient)
        others = found[0].grad is not None and found[0].grad is not sums[0]
        if others or found[0].grad is None:
            torch._foreach_zero_(sums)
        tape.gradient[:size].copy_(gradient)
        tape.gradient[size:].zero_()
        tape.back.replay()
        for weight, added in zip(found, sums, strict=True):
            if others and weight.grad is not None:
                weight.grad += added
            else:
                weight.grad = added
        self._open = None
        return None if tape.x.grad is None else tape.x.grad[:size]


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

    def mask(self, starts: Tensor | None = None) -> Mask:
        """Who may see whom, on the device."""
        if self.even:
            return self.given
        # Two sequences of unequal length: only where they begin and how long they are is asked.
        lengths = [self.longest, self.longest - 1]
        prefix = None if self.given.pattern == "full" else [0, 0]
        mask = Mask(lengths, prefix=prefix, device=self.given.device)
        mask.starts = self.placed() if starts is None else starts
        return mask

    def placed(self) -> Tensor:
        """Where sequences begin, on the device."""  # (S + 1,)
        return as_tensor(self.starts, self.given.device, torch.int32)


class _Tape:
    """Tensors that stay where they are, and what a GPU does with them."""

    def __init__(self, x: Tensor, padded: _Padded) -> None:
        self.x = padded.stream(x.detach()).clone().requires_grad_(x.requires_grad)
        self.places = torch.zeros(padded.tokens, dtype=torch.long, device=x.device)
        self.starts = None if padded.even else padded.placed()
        self.mask = padded.mask(self.starts)
        self.out = self.gradient = torch.empty(0)
        self.there: Any = None
        self.back: Any = None

    def fill(self, x: Tensor, padded: _Padded, places: Tensor) -> None:
        """Take a stream."""
        with torch.no_grad():
            for here, given in ((self.x, x), (self.places, places)):
                here[: len(given)].copy_(given)
                here[len(given) :].zero_()
        if self.starts is not None:
            self.starts.copy_(padded.placed())

    def record(
        self, work: Work, learned: Sequence[nn.Parameter], sums: Sequence[Tensor], pool: Any
    ) -> None:
        """Record work, and its gradients, which are added to `sums`."""

        def see() -> None:
            self.out = _done(work, self.x, self.mask, self.places)

        def look_back() -> None:
            wanted = [*learned, *([self.x] if self.x.requires_grad else [])]
            found = torch.autograd.grad(self.out, wanted, self.gradient, allow_unused=True)
            pairs = [(a, b) for a, b in zip(sums, found, strict=False) if b is not None]
            torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
            if self.x.requires_grad:
                self.x.grad = found[-1]

        self.there = recorded(see, pool)
        self.gradient = torch.zeros_like(self.out)
        self.back = recorded(look_back, pool)
        self.out = self.out.detach()  # what was kept for the gradient may be used by other shapes


class _Play(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, tape: _Tape, recorder: Recorder) -> Tensor:
        with torch.enable_grad():
            tape.there.replay()
        ctx.tape, ctx.recorder = tape, recorder
        recorder._open = weakref.ref(ctx)
        return tape.out.detach()[: len(x)]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.recorder.learn(ctx.tape, gradients[0]), None, None, None


def recorded(work: Callable[[], object], pool: Any) -> Any:
    """What replays some work on a GPU."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


def _pool() -> Any:
    """Memory that all shapes share: only one of them is computed at a time."""
    return torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None


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
