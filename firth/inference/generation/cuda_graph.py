"""CUDA graph capture of decoding steps.

A decoding step launches one to two hundred small kernels, and launching them takes longer than
running them. Its tensors stay in place from step to step, so the whole step can be captured as a
CUDA graph and replayed with one launch. The results equal those of the plain step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

import torch

from firth.models.cuda_graphs import capture_graph

Step = Callable[[], object]

CAPTURE_LOCK = threading.Lock()  # one capture at a time
WARMUP_STEPS = 1  # plain steps before the capture: they allocate what the step needs


class GraphedStep:
    """A repeated computation on fixed tensors, replayed as a CUDA graph on GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device, self.uses_graphs = device, device.type == "cuda"
        self._shape: Hashable = None
        self._runs = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, step: Step, shape: Hashable) -> None:
        """Run the step, which is always the same; a new `shape` discards the captured graph."""
        if shape != self._shape:
            self._shape, self._runs, self._graph = shape, 0, None
        self._runs += 1
        if self.uses_graphs and self._runs > WARMUP_STEPS and self._graph is None:
            self._graph = self._capture(step)
        if self._graph is None:
            step()
        else:
            self._graph.replay()

    def _capture(self, step: Step) -> torch.cuda.CUDAGraph | None:
        """Capture the step; None if it synchronises with the GPU and cannot be captured."""
        try:
            with CAPTURE_LOCK:
                return capture_graph(step, self._device, purpose="generation")
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self.uses_graphs = False
            return None
