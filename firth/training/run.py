"""The lifecycle of a training run: lock, `run.json`, log, training loop, model card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from firth.data.memory import MemoryTable, Source
from firth.training.config import TrainingConfig
from firth.training.distributed.ranks import current_ranks, wait_for_all
from firth.training.log import Callback, Metrics, MetricsLog, tensorboard_callback
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.model_card import write_model_card
from firth.training.plateau import UnigramBaseline
from firth.training.run_directory import (
    LOCK,
    METRICS,
    RUN,
    check_run_directory,
    fingerprint,
    read_metrics,
    versions,
)
from firth.training.state import BatchPlanner
from firth.utils.errors import storage_errors
from firth.utils.files import locked, sha256, write_json


@dataclass
class Run:
    """A training run in its directory, which is locked until the run ends."""

    path: Path
    config: TrainingConfig
    description: dict[str, Any]  # the contents of run.json
    resumed: bool
    log: MetricsLog

    def training_loop(
        self,
        module: TrainingModule,
        plan: BatchPlanner,
        callbacks: Callbacks,
        notes: Sequence[str],
        baseline: UnigramBaseline | None = None,
    ) -> TrainingLoop:
        """Build the training loop; a resumed run continues from its last checkpoint."""
        if not self.log.path.exists():  # a resumed run has these notes already
            for note in notes:
                self.log.note(note)
        loop = TrainingLoop(module, self.config, plan, self.log, callbacks, baseline)
        if self.resumed:
            loop.resume()
        return loop

    def metrics(self) -> list[dict[str, Any]]:
        """Read the log: one dict for each logged step, validation and note."""
        return read_metrics(self.log.path) if self.log.path.is_file() else []

    def finish(self, results: Mapping[str, Any], **updates: Any) -> None:
        """Write the model card, and mark the run as finished in `run.json`, on the main rank."""
        if not current_ranks().is_main:
            return
        self.description |= {"finished": True, "results": dict(results), **updates}
        write_model_card(self.path, self.description)
        write_json(self.path / RUN, self.description)


@contextmanager
def open_run(
    path: Path,
    config: TrainingConfig,
    description: dict[str, Any],
    *,
    resume: bool,
    callback: Callback,
    speed: Callable[[int, float], Metrics],
) -> Iterator[Run]:
    """Create or reopen a run directory, lock it and write its `run.json`."""
    if not current_ranks().is_main:
        wait_for_all()
        log = MetricsLog(path / rank_metrics(), config.log_every, callback, speed)
        yield Run(path, config, description, resume, log)
        wait_for_all()  # until the main rank has written the model
        return
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    with locked(path / LOCK, f"training in {path}"):
        description = check_run_directory(path, description, resume)
        with storage_errors(path):
            write_json(path / RUN, description)
        wait_for_all()
        if config.track:
            callback = tensorboard_callback(path / "tensorboard", callback)
        log = MetricsLog(path / METRICS, config.log_every, callback, speed)
        yield Run(path, config, description, resume, log)
        wait_for_all()


def rank_metrics() -> str:
    """Return the name of this rank's log in the run directory; the main rank's is METRICS."""
    stem, _, suffix = METRICS.partition(".")
    return f"{stem}.rank-{current_ranks().rank}.{suffix}"


def describe_run(
    kind: str, job: Mapping[str, Any], data: Mapping[str, Source], parents: Mapping[str, Path]
) -> dict[str, Any]:
    """Describe a new run for `run.json`: command, config, hashes of data and parent models."""
    return {
        "kind": kind,
        "finished": False,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "job": dict(job),
        "data": {name: _describe_data(source) for name, source in data.items()},
        "parents": {
            name: {"path": str(path), "sha256": fingerprint(path)} for name, path in parents.items()
        },
        "versions": versions(),
    }


def _describe_data(source: Source) -> dict[str, str]:
    """Return the path of a data file and its hash; of shards, that of their index."""
    if isinstance(source, MemoryTable):
        return {"path": f"{source} (in memory)", "sha256": source.sha256}
    data = Path(source)
    file = data / "index.json" if data.is_dir() else data
    return {"path": str(data), "sha256": sha256(file) if file.is_file() else ""}
