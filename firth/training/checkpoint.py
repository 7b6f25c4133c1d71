"""Checkpoints: the state of a training run, safe against kills and full disks.

DIRECTORY/step-N/tensors.safetensors    every tensor, with checksums
                 state.json             everything else, with checksums of itself and the tensors
          micro-batch            tokens of a micro-batch, after a run that was out of memory

A checkpoint is written under a hidden name, `.step-N.PID.partial`, and renamed when all of it is on
the disk. An existing one is first renamed to `.step-N.PID.replaced`, so that at any time either the
old or the new one exists. `distributed/sharded_checkpoints.py` has those of several processes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.formats.safetensors import Weights, open_weights, write_weights
from firth.utils.errors import InputError, UsageError, storage_errors
from firth.utils.files import (
    CHECKSUM_PLACEHOLDER,
    atomic_file,
    checksum_matches,
    embed_checksum,
    sync_directory,
)

TENSORS, STATE, MICRO_BATCH = "tensors.safetensors", "state.json", "micro-batch"
SUM, FILES = "sha256", "files"  # fields of the state: its checksum, those of the tensors' files
PIECE = re.compile(r"(.+)@(\d+)")  # a name, and the first of some rows of its tensor
FULL = "Earlier checkpoints are intact; free some space and resume from the newest."
FULL_AT_FIRST = "There is no earlier checkpoint; free some space and start again."
NAME = re.compile(r"step-(\d+)")
HIDDEN = re.compile(r"\.(step-(\d+))\.(\d+)\.(partial|replaced)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a training run after a step."""

    step: int
    path: Path
    state: dict[str, Any]
    weights: Mapping[str, Tensor]


class JoinedWeights(Mapping[str, Tensor]):
    """The tensors of several files; one whose rows are in several (`name@row`) is joined."""

    def __init__(self, files: Iterable[Weights]) -> None:
        self._pieces: dict[str, dict[int, tuple[Weights, str]]] = {}
        for file in files:
            for stored in file:
                match = PIECE.fullmatch(stored)
                name, row = (match[1], int(match[2])) if match else (stored, 0)
                self._pieces.setdefault(name, {})[row] = file, stored

    def __getitem__(self, name: str) -> Tensor:
        pieces = [file[stored] for _, (file, stored) in sorted(self._pieces[name].items())]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


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

    needs_all_ranks = False  # whether every rank calls `save` and `newest`

    def __init__(self, directory: Path, keep: int = 2) -> None:
        if keep < 1:
            raise UsageError(f"keep_checkpoints must be at least 1, not {keep}.")
        self.directory = directory
        self.keep = keep

    def storage_errors(self) -> AbstractContextManager[None]:
        """Turn an error of the disk into one sentence that says what is left."""
        return storage_errors(self.directory, FULL if self._candidates() else FULL_AT_FIRST)

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write a checkpoint atomically, then remove older ones.

        `state` must be JSON values. Only one process at a time may save into a directory.
        """
        partial = self.begin(step)
        try:
            with self.storage_errors():
                sums = {TENSORS: write_weights(partial / TENSORS, tensors)}
        except BaseException:
            self.discard(partial)
            raise
        return self.complete(step, partial, sums, state)

    def begin(self, step: int) -> Path:
        """Make the hidden directory of a new checkpoint, for its files."""
        with self.storage_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            partial = self._hidden(step, "partial")
            partial.mkdir()
        return partial

    def discard(self, partial: Path) -> None:
        """Remove a checkpoint that could not be written."""
        shutil.rmtree(partial, ignore_errors=True)

    def complete(
        self, step: int, partial: Path, sums: Mapping[str, str], state: Mapping[str, Any]
    ) -> Path:
        """Write the index of a checkpoint, give it its final name and remove older ones.

        `sums` has the checksum of each of its files.
        """
        with self.storage_errors():
            try:
                content = {"step": step, FILES: dict(sums), "state": dict(state)}
                _write_state(partial / STATE, content)
                path = self._publish(step, partial)
            except BaseException:
                self.discard(partial)
                raise
            self._prune(step)
        return path

    def newest(self, notes: list[str] | None = None) -> Checkpoint | None:
        """Return the newest intact checkpoint, if there are any; add a note about damaged ones.

        If all are damaged, raise an error: a run must not silently start again.
        """
        damaged: list[str] = []
        for step, path in self._candidates():
            try:
                checkpoint = load_checkpoint(step, path)
            except InputError:
                damaged.append(path.name)
                continue
            if damaged and notes is not None:
                notes.append(
                    f"Using {path.name} in {self.directory}, as {_listed(damaged)} cannot be used: "
                    "incomplete or damaged."
                )
            return checkpoint
        if damaged:
            raise InputError(
                f"All checkpoints in {self.directory} are incomplete or damaged "
                f"({_listed(damaged)}); restore one from a copy, or move them away to start again."
            )
        return None

    def limit_micro_batch(self, tokens: int) -> None:
        """Make the resumed run use micro-batches of at most this size."""
        path = self.directory / MICRO_BATCH
        with self.storage_errors(), atomic_file(path) as file:
            file.write(str(tokens).encode())

    def micro_batch_limit(self) -> int:
        """Return the largest micro-batch of the resumed run in tokens; 0: there is no limit."""
        path = self.directory / MICRO_BATCH
        return int(path.read_text()) if path.is_file() else 0

    def _candidates(self) -> list[tuple[int, Path]]:
        """List possible checkpoints, newest first, a replaced one after its successor."""
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
        """Remove partial checkpoints of killed processes; restore those they were replacing."""
        for match, path in self._leftovers():
            name, pid, why = match[1], int(match[3]), match[4]
            if pid != os.getpid() and _is_alive(pid):
                continue
            if why == "replaced" and not (self.directory / name).exists():
                os.rename(path, self.directory / name)
            else:
                shutil.rmtree(path)

    def _publish(self, step: int, partial: Path) -> Path:
        """Rename a complete checkpoint to its final name."""
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
        """Remove all but the newest checkpoints up to this step; later ones stay."""
        older = sorted(entry for entry in self._numbered() if entry[0] <= step)[: -self.keep]
        for number, path in older:
            hidden = self._hidden(number, "partial")  # not partly deleted under its final name
            os.rename(path, hidden)
            shutil.rmtree(hidden)


def _write_state(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps({SUM: CHECKSUM_PLACEHOLDER.decode(), **content}, indent=2)
    with atomic_file(path) as file:
        file.write(embed_checksum(f"{text}\n".encode()))


def load_checkpoint(step: int, path: Path, *, verify: bool = True) -> Checkpoint:
    """Open a checkpoint; with `verify`, compare all of it with its checksums."""
    state_file = path / STATE
    try:
        text = state_file.read_bytes()
        content = json.loads(text)
        if not checksum_matches(text, content[SUM]) or content["step"] != step:
            raise ValueError("checksum mismatch")
        sums, state = dict(content.get(FILES) or {TENSORS: content[TENSORS]}), content["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{state_file} is incomplete or damaged.") from error
    files = []
    for name, total in sums.items():
        weights = open_weights(path / Path(name).name, verify=verify)
        if weights.checksum != total:
            raise InputError(f"{path / name} does not belong to {state_file}.")
        files.append(weights)
    is_joined = list(sums) != [TENSORS]  # one rank with divided weights has one file, with rows
    return Checkpoint(step, path, state, JoinedWeights(files) if is_joined else files[0])


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would send Ctrl-C
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # alive, but of another user
    return True


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
