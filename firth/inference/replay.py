"""Work that a GPU is told once, and then only asked to do again.

A step of writing is some two hundred small kernels, and asking for each takes longer than computing
it. Its tensors stay where they are from step to step, so all of it can be recorded and asked for at
once: a CUDA graph. The numbers are those of the plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

PLAIN = 2  # times before work is recorded: for so few, recording would take longer than asking


class Replayed:
    """Work on tensors that stay in place; what it returns is not seen."""

    def __init__(self, work: Callable[[], object], device: torch.device) -> None:
        self.work, self.records = work, device.type == "cuda"
        self._done: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def __call__(self, shape: Hashable) -> None:
        """Do it; of one `shape` it is always the same kernels."""
        done = self._done[shape] = self._done.get(shape, 0) + 1
        if self.records and done > PLAIN and (shape in self._graphs or self._record(shape)):
            self._graphs[shape].replay()
        else:
            self.work()

    def _record(self, shape: Hashable) -> bool:
        """Let a GPU note what to do; False where the work waits for it somewhere."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.work()
        except RuntimeError:
            self.records = False
        else:
            self._graphs[shape] = graph
        return self.records
