"""Checkpoints in the background: of the tensors as they were, and none is lost silently."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.jobs.pretraining import pretrain
from firth.objectives.batch import Batch
from firth.training import checkpoint_writer
from firth.training.checkpoint import Checkpoints
from firth.training.checkpoint_writer import CheckpointWriter
from firth.training.loop import Callbacks
from firth.utils.errors import StorageError
from tests.training.conftest import SMALL

MAIN = threading.current_thread()


class SlowCheckpoints(Checkpoints):
    """Checkpoints that are written when `go` is set, or fail."""

    def __init__(self, directory: Path, error: Exception | None = None) -> None:
        super().__init__(directory)
        self.go, self.error, self.threads = threading.Event(), error, list[threading.Thread]()

    def save(self, step: int, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        self.threads.append(threading.current_thread())
        assert self.go.wait(timeout=60)
        if self.error is not None:
            raise self.error
        return super().save(step, tensors, state)


@pytest.fixture(autouse=True)
def _much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "free_memory", lambda swap: 1 << 40)


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
    assert MAIN not in checkpoints.threads


@pytest.mark.parametrize("why", ["several ranks", "little memory", "out of memory", "final"])
def test_training_waits_for_a_checkpoint_where_it_must(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 1.2 GB")

    checkpoints = SlowCheckpoints(tmp_path)
    checkpoints.needs_all_ranks = why == "several ranks"
    if why == "little memory":
        monkeypatch.setattr(checkpoint_writer, "free_memory", lambda swap: 40)
    checkpoints.go.set()
    writer, weight = CheckpointWriter(checkpoints, pytest.fail), torch.ones(3)
    with monkeypatch.context() as patch:
        if why == "out of memory":
            patch.setattr(Tensor, "to", fail)
        writer.save(1, {"weight": weight}, {}, final=why == "final")
    assert writer.saved_step == 1
    assert checkpoints.threads == [MAIN]


@pytest.mark.parametrize("error", [StorageError("The disk is full."), MemoryError(), OSError("5")])
def test_a_failure_is_noted_once_and_raised_at_the_end(error: Exception, tmp_path: Path) -> None:
    checkpoints, notes = SlowCheckpoints(tmp_path, error), list[str]()
    checkpoints.go.set()
    writer = CheckpointWriter(checkpoints, notes.append)
    writer.save(1, {}, {})
    writer.wait()
    writer.wait()
    [note] = notes
    assert (str(error) or "MemoryError") in note
    with pytest.raises(type(error)):
        writer.save(2, {}, {}, final=True)
    assert writer.saved_step == -1


def test_a_second_interrupt_waits_for_no_checkpoint(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, written = threading.Event(), list[bool]()
    save = Checkpoints.save

    def slow(self: Checkpoints, *arguments: Any) -> Path:
        written.append(done.wait(timeout=60))
        return save(self, *arguments)

    def interrupt(step: int, part: Batch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", slow)
    callbacks = Callbacks(before_micro_batch=interrupt)
    options = {"preset": "encoder-tiny", "data": shards, "steps": 5, "overrides": SMALL}
    with pytest.raises(KeyboardInterrupt):
        pretrain(out=tmp_path / "run", callbacks=callbacks, **options)
    assert not written
    done.set()
