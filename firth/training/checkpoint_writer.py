"""Checkpoints that a thread writes while training continues."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from firth.training.checkpoint import Checkpoints
from firth.utils.devices import available_memory
from firth.utils.errors import StorageError

MAX_SECONDS = 300.0  # longest time between two checkpoints
MAX_MEMORY_FRACTION = 0.25  # of the free main memory, for the copies of a run's tensors


class CheckpointWriter:
    """Write the checkpoints of a run, one at a time, from copies of its tensors.

    Training waits for a checkpoint only if the copies would take too much memory, if several ranks
    write it together, or if it is the final one. A full disk is noted, and training continues.
    """

    def __init__(self, checkpoints: Checkpoints, note: Callable[[str], None]) -> None:
        self.saved_step = -1  # of the newest complete checkpoint
        self._checkpoints, self._note = checkpoints, note
        self._thread = ThreadPoolExecutor(1, "firth-checkpoint")
        self._writing: Future[None] | None = None
        self._last = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the last checkpoint is too long ago."""
        return time.monotonic() - self._last > MAX_SECONDS

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        *,
        final: bool = False,
    ) -> None:
        """Begin a checkpoint; the final one is complete afterwards, or raises StorageError."""
        self.wait()
        self._last = time.monotonic()
        if not final and not self._checkpoints.needs_all_ranks and _copies_fit(tensors):
            copies = {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
            self._writing = self._thread.submit(self._write, step, copies, state)
            return
        try:
            self._write(step, tensors, state)
        except StorageError as error:
            if final:
                raise
            self._note_full_disk(error)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except StorageError as error:
            self._note_full_disk(error)

    def _note_full_disk(self, error: StorageError) -> None:
        self._note(f"{error} Training continues and will try again.")

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self._checkpoints.save(step, tensors, state)
        self.saved_step = step


def _copies_fit(tensors: Mapping[str, Tensor]) -> bool:
    """Tell whether copies of the tensors take a small part of the free main memory."""
    free = available_memory(torch.device("cpu"))
    size = sum(tensor.nbytes for tensor in tensors.values())
    return free is not None and size <= MAX_MEMORY_FRACTION * free
