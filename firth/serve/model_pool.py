"""The models of a server: loaded in a thread, each with a worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial

from firth.inference.embedding.embedder import BATCH_TOKENS
from firth.model import Model
from firth.serve.admission import Admission
from firth.serve.api_errors import ApiError
from firth.serve.model_worker import ModelWorker
from firth.serve.served_model import ServedModel
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics
from firth.utils.errors import suggest

Loader = Callable[[], Model]
QUEUE_BATCHES = 8  # that may wait, by default


@dataclass(frozen=True, eq=False)
class PoolEntry:
    """A served model with its worker and its queue."""

    served: ServedModel
    worker: ModelWorker
    admission: Admission


class ModelPool:
    """Loads models by name, and finds the one that a request names."""

    def __init__(
        self, loaders: Mapping[str, Loader], config: ServeConfig, metrics: ServerMetrics
    ) -> None:
        self.loaders, self.config, self.metrics = loaders, config, metrics
        self.entries: dict[str, PoolEntry] = {}
        self.error: BaseException | None = None  # of loading
        self.admission = self._admission(BATCH_TOKENS["cpu"])  # of requests without a model

    @property
    def ready(self) -> bool:
        """Whether all models are loaded."""
        return len(self.entries) == len(self.loaders)

    def load(self) -> None:
        """Load all models and start their workers."""
        for name, load in self.loaders.items():
            served = ServedModel(name, load(), created=int(time.time()))
            worker = ModelWorker(served, self.config, self.metrics)
            admission = self._admission(worker.batch_tokens)
            self.metrics.watch_queue(name, admission)
            self.entries[name] = PoolEntry(served, worker, admission)

    def _admission(self, batch_tokens: int) -> Admission:
        return Admission(self.config.queue_tokens or QUEUE_BATCHES * batch_tokens)

    def start_loading(self, finished: Callable[[], None]) -> None:
        """Load in a thread; an error is stored, and `finished` is called in any case."""

        def load() -> None:
            try:
                self.load()
            except BaseException as error:
                self.error = error
            finished()

        # The options of the hub (--offline) are in the context of this thread.
        run = partial(copy_context().run, load)
        threading.Thread(target=run, name="load-models", daemon=True).start()

    def find(self, name: str | None, capability: str) -> PoolEntry:
        """Find a model by name; without a name, the only one with a capability."""
        if not self.ready:
            raise ApiError(503, "The models are being loaded: try again.", retry_after=1)
        able = {
            own: entry
            for own, entry in self.entries.items()
            if capability in entry.served.capabilities
        }
        if name is None and len(able) == 1:
            return next(iter(able.values()))
        if name is None:
            names = f"Name the `model`: {', '.join(able)}."
            message = names if able else f"No model of this server can {capability}."
            raise ApiError(400, message, param="model")
        entry = self.named(name)
        if name not in able:
            others = f": use {' or '.join(able)}." if able else ", and no other model here."
            raise ApiError(400, f"The model {name} cannot {capability}{others}", param="model")
        return entry

    def named(self, name: str) -> PoolEntry:
        """Return the loaded model of a name; raise a 404 if there is none."""
        if name not in self.entries:
            short = name[:80]
            message = f"There is no model {short!r}: {suggest(short, self.entries)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.entries[name]

    def close(self) -> None:
        """Stop the workers after their running work."""
        for entry in list(self.entries.values()):  # a thread may still add some
            entry.worker.close()
