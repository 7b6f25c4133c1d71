"""Checkpoints: the whole state of a training run, which neither a kill nor a full disk can spoil.

DIRECTORY/step-N/tensors.safetensors    every tensor, with its sums
                 state.json             everything else, with a sum of itself and of the tensors

A checkpoint is written under a hidden name, `.step-N.PID.partial`, and gets its own when all of it
is on the disk. One that stands in the way is first renamed to `.step-N.PID.replaced`, so that at
each moment either the old or the new one can be found.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from firth.errors import InputError, Misuse, storage_errors
from firth.files import UNSEALED, atomic_file, is_sealed, seal, sync_directory
from firth.models.formats.weights import SUM, Weights, open_weights, write_weights

TENSORS, STATE = "tensors.safetensors", "state.json"
NAME = re.compile(r"step-(\d+)")
HIDDEN = re.compile(r"\.(step-(\d+))\.(\d+)\.(partial|replaced)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training run as it was after some step."""

    step: int
    path: Path
    state: dict[str, Any]
    weights: Weights


class Checkpoints:
    """The checkpoints of one training run: the newest `keep` of them, in one directory.

    >>> import tempfile, torch; checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
    >>> for step in (9, 10, 11):
    ...     _ = checkpoints.save(step, {"bias": torch.full((2,), step)}, {"loss": 1 / step})
    >>> sorted(path.name for path in checkpoints.directory.iterdir())
    ['step-10', 'step-11']
    >>> newest = checkpoints.newest()
    >>> newest.step, newest.state, newest.weights["bias"]
    (11, {'loss': 0.09090909090909091}, tensor([11, 11]))
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 1:
            raise Misuse(f"At least one checkpoint has to be kept, not {keep}.")
        self.directory = directory
        self.keep = keep

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint, whole or not at all, then remove those that are not kept.

        `state` is anything JSON can hold. One process at a time may save into a directory.
        """
        kept = "The earlier checkpoints are whole; free some space, and go on from the newest."
        with storage_errors(self.directory, kept):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            partial = self._hidden(step, "partial")
            try:
                partial.mkdir()
                total = write_weights(partial / TENSORS, tensors)
                _write_state(partial / STATE, {"step": step, TENSORS: total, "state": dict(state)})
                path = self._publish(step, partial)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            self._prune(step)
        return path

    def newest(self, notes: list[str] | None = None) -> Checkpoint | None:
        """The newest checkpoint that is whole, if there are any; a note says what was passed over.

        Where none of them is whole this is an error: a run must not silently begin again.
        """
        damaged: list[str] = []
        for step, path in self._candidates():
            try:
                checkpoint = _load(step, path)
            except InputError:
                damaged.append(path.name)
                continue
            if damaged and notes is not None:
                notes.append(
                    f"{_listed(damaged)} in {self.directory} cannot be used, being incomplete or "
                    f"damaged; {path.name} is used instead."
                )
            return checkpoint
        if damaged:
            raise InputError(
                f"No checkpoint in {self.directory} is whole: {_listed(damaged)} cannot be used, "
                "being incomplete or damaged; restore one from a copy, or move them away to start "
                "again."
            )
        return None

    def _candidates(self) -> list[tuple[int, Path]]:
        """All that may be a checkpoint, the newest first, a replaced one behind its successor."""
        found = list(self._numbered())
        found += [
            (int(match[2]), path) for match, path in self._leftovers() if match[4] != "partial"
        ]
        return sorted(found, key=lambda entry: (entry[0], entry[1].name), reverse=True)

    def _numbered(self) -> Iterator[tuple[int, Path]]:
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            if match := NAME.fullmatch(path.name):
                yield int(match[1]), path

    def _leftovers(self) -> Iterator[tuple[re.Match[str], Path]]:
        for path in list(self.directory.iterdir()) if self.directory.is_dir() else ():
            if match := HIDDEN.fullmatch(path.name):
                yield match, path

    def _hidden(self, step: int, why: str) -> Path:
        return self.directory / f".step-{step}.{os.getpid()}.{why}"

    def _sweep(self) -> None:
        """Remove what a killed process left half done, or put back what it was about to replace."""
        for match, path in self._leftovers():
            name, pid, why = match[1], int(match[3]), match[4]
            if pid != os.getpid() and _is_alive(pid):
                continue
            if why == "replaced" and not (self.directory / name).exists():
                os.rename(path, self.directory / name)
            else:
                shutil.rmtree(path)

    def _publish(self, step: int, partial: Path) -> Path:
        """Give a complete checkpoint its name."""
        path = self.directory / f"step-{step}"
        replaced = self._hidden(step, "replaced")
        if path.exists():
            os.rename(path, replaced)
        os.rename(partial, path)
        sync_directory(self.directory)
        if replaced.exists():
            shutil.rmtree(replaced)
        return path

    def _prune(self, step: int) -> None:
        """Remove what is older than the newest; a later step than this one is not its business."""
        older = sorted(entry for entry in self._numbered() if entry[0] <= step)[: -self.keep]
        for number, path in older:
            hidden = self._hidden(number, "partial")  # never half a checkpoint under a whole name
            os.rename(path, hidden)
            shutil.rmtree(hidden)


def _write_state(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps({SUM: UNSEALED.decode(), **content}, indent=2)
    with atomic_file(path) as file:
        file.write(seal(f"{text}\n".encode()))


def _load(step: int, path: Path) -> Checkpoint:
    state_file = path / STATE
    try:
        text = state_file.read_bytes()
        content = json.loads(text)
        if not is_sealed(text, content[SUM]) or content["step"] != step:
            raise ValueError("not what was written")
        total, state = content[TENSORS], content["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{state_file} is incomplete or damaged.") from error
    weights = open_weights(path / TENSORS)
    if weights.metadata.get(SUM) != total:
        raise InputError(f"{path / TENSORS} does not belong to {state_file}.")
    return Checkpoint(step, path, state, weights)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is alive, and somebody else's
    return True


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
