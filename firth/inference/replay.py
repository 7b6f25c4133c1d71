"""Work that a GPU is told once, and then only asked to do again.

A step of writing is some two hundred small kernels, and asking for each takes longer than computing
it. Its tensors stay where they are from step to step, so all of it can be recorded and asked for at
once: a CUDA graph. The numbers are those of the plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from firth.models.recording import recorded

Work = Callable[[], object]

PLAIN = 1  # times before work is recorded: what it needs is there then


class Replayed:
    """Work on tensors that stay in place, done again and again; what it returns is not seen."""

    def __init__(self, device: torch.device) -> None:
        self.records = device.type == "cuda"
        self._shape: Hashable = None
        self._done = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, work: Work, shape: Hashable) -> None:
        """Do work, always the same; with another `shape`, its kernels are others from now on."""
        if shape != self._shape:
            self._shape, self._done, self._graph = shape, 0, None
        self._done += 1
        if self.records and self._done > PLAIN and self._graph is None:
            self._graph = self._record(work)
        if self._graph is None:
            work()
        else:
            self._graph.replay()

    def _record(self, work: Work) -> torch.cuda.CUDAGraph | None:
        """Let a GPU note what to do; None where the work waits for it somewhere."""
        try:
            return recorded(work)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self.records = False
            return None
