"""Checkpoints in the background: of the tensors as they were, and none is lost silently."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from firth.training import checkpoint_writer
from firth.training.checkpoint import Checkpoints
from firth.training.checkpoint_writer import CheckpointWriter
from firth.utils.errors import StorageError


class SlowCheckpoints(Checkpoints):
    """Checkpoints that are written when `go` is set, or fail."""

    def __init__(self, directory: Path, error: str = "") -> None:
        super().__init__(directory)
        self.go, self.error, self.threads = threading.Event(), error, list[str]()

    def save(self, step: int, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(timeout=60)
        if self.error:
            raise StorageError(self.error)
        return super().save(step, tensors, state)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    checkpoints = SlowCheckpoints(tmp_path)
    writer, weight = CheckpointWriter(checkpoints, pytest.fail), torch.ones(3)
    writer.save(1, {"weight": weight}, {"loss": 0.5})
    weight.zero_()  # the next step
    assert writer.saved_step == -1
    checkpoints.go.set()
    writer.wait()
    assert writer.saved_step == 1
    newest = checkpoints.newest()
    assert newest is not None
    assert newest.weights["weight"].tolist() == [1, 1, 1]
    assert checkpoints.threads[0] != threading.current_thread().name


@pytest.mark.parametrize("why", ["several ranks", "little memory", "final"])
def test_training_waits_for_a_checkpoint_where_it_must(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = SlowCheckpoints(tmp_path)
    checkpoints.needs_all_ranks = why == "several ranks"
    if why == "little memory":
        monkeypatch.setattr(checkpoint_writer, "available_memory", lambda device: 40)
    checkpoints.go.set()
    writer = CheckpointWriter(checkpoints, pytest.fail)
    writer.save(1, {"weight": torch.ones(3)}, {}, final=why == "final")
    assert writer.saved_step == 1
    assert checkpoints.threads == [threading.current_thread().name]


def test_a_full_disk_is_noted_once_and_raised_at_the_end(tmp_path: Path) -> None:
    checkpoints, notes = SlowCheckpoints(tmp_path, error="The disk is full."), list[str]()
    checkpoints.go.set()
    writer = CheckpointWriter(checkpoints, notes.append)
    writer.save(1, {}, {})
    writer.wait()
    writer.wait()
    assert len(notes) == 1
    assert notes[0].startswith("The disk is full. ")
    with pytest.raises(StorageError, match="full"):
        writer.save(2, {}, {}, final=True)
    assert writer.saved_step == -1
