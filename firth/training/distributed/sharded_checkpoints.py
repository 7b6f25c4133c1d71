"""Checkpoints that all ranks write: one file for each rank, then an index of all of them.

DIRECTORY/step-N/tensors-R-of-W.safetensors    the tensors of rank R; rank 0 has the weights
                 state.json                    written last: the files' checksums and the state

A file that one rank has not finished leaves a directory without `state.json` under a hidden name,
which is never read; earlier checkpoints are removed only after the new one has its final name. A
checkpoint can be read by any number of ranks. All ranks need the same file system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from firth.formats.safetensors import write_weights
from firth.training.checkpoint import Checkpoint, Checkpoints, load_checkpoint
from firth.training.distributed.ranks import current_ranks, gather_json, of_main_rank
from firth.utils.errors import FirthError, InputError, StorageError


class ShardedCheckpoints(Checkpoints):
    """The checkpoints of a run on several ranks; every rank calls `save` and `newest`."""

    needs_all_ranks = True

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Write this rank's tensors and wait for all others; then the main rank completes it."""
        ranks = current_ranks()
        partial = Path(_on_main_rank(lambda: str(self.begin(step)), StorageError))
        name = f"tensors-{ranks.rank}-of-{ranks.size}.safetensors"
        total = error = ""
        try:
            with self.storage_errors():
                total = write_weights(partial / name, tensors)
        except StorageError as caught:
            error = str(caught)
        everyone = gather_json([name, total, error])
        failed = next((why for _, _, why in everyone if why), "")
        sums = {file: checksum for file, checksum, _ in everyone}

        def complete() -> str:
            if failed:
                self.discard(partial)
                raise StorageError(failed)
            return str(self.complete(step, partial, sums, state))

        return Path(_on_main_rank(complete, StorageError))

    def newest(self, notes: list[str] | None = None) -> Checkpoint | None:
        """Return the newest checkpoint that is whole; the main rank verifies it."""
        found: list[Checkpoint | None] = [None]

        def search() -> list[Any] | None:
            found[0] = super(ShardedCheckpoints, self).newest(notes)
            return None if found[0] is None else [found[0].step, str(found[0].path)]

        place = _on_main_rank(search, InputError)
        if place is None or found[0] is not None:
            return found[0]
        return load_checkpoint(place[0], Path(place[1]), verify=False)


def _on_main_rank(work: Callable[[], Any], error_class: type[FirthError]) -> Any:
    """Return the main rank's result on all ranks; raise its error on all of them."""
    result, error = None, ""
    if current_ranks().is_main:
        try:
            result = work()
        except error_class as caught:
            error = str(caught)
    result, error = of_main_rank([result, error])
    if error:
        raise error_class(error)
    return result
