"""Checkpoints that a thread writes while training continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from firth.training.checkpoint import Checkpoints
from firth.training.device_errors import is_out_of_memory
from firth.utils.errors import StorageError
from firth.utils.main_memory import free_memory

CHECKPOINT_SECONDS = 300.0  # longest time between two checkpoints
MAX_MEMORY_FRACTION = 0.25  # of the free main memory, for the copies of a run's tensors


class CheckpointWriter:
    """Write the checkpoints of a run, one at a time, from copies of its tensors.

    Training waits for a checkpoint only if the copies would take too much memory, if several ranks
    write it together, or if it is the final one. A failure is noted, and training continues.
    """

    def __init__(self, checkpoints: Checkpoints, note: Callable[[str], None]) -> None:
        self.saved_step = -1  # of the newest complete checkpoint
        self._checkpoints, self._note = checkpoints, note
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None  # of the thread
        self._begun = time.monotonic()  # the last checkpoint

    @property
    def is_overdue(self) -> bool:
        """Whether the last checkpoint is too long ago."""
        return time.monotonic() - self._begun > CHECKPOINT_SECONDS

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
        self._begun = time.monotonic()
        if final or (copies := self._copy(tensors)) is None:
            try:
                self._write(step, tensors, state)
            except StorageError as error:
                if final:
                    raise
                self._note_failure(error)
            return
        # A daemon: a second Ctrl-C ends the process at once. Unfinished checkpoints are harmless.
        self._thread = threading.Thread(
            target=self._try_to_write, args=(step, copies, state), daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            self._note_failure(error)

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Copy the tensors to main memory; None if training has to wait for the checkpoint."""
        size, free = sum(tensor.nbytes for tensor in tensors.values()), free_memory(swap=False)
        if free is None or size > MAX_MEMORY_FRACTION * free or self._checkpoints.needs_all_ranks:
            return None
        try:
            return {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _try_to_write(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> None:
        try:
            self._write(step, tensors, state)
        except Exception as error:
            self._error = error

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        self._checkpoints.save(step, tensors, state)
        self.saved_step = step

    def _note_failure(self, error: Exception) -> None:
        what = str(error)
        if not isinstance(error, StorageError):
            what = f"A checkpoint could not be written ({what or type(error).__name__})."
        self._note(f"{what} Training continues and will try again.")
