"""The worker of a model: one thread that computes, in batches, what requests ask for.

The thread alone touches the network. Jobs with equal functions and settings are joined up to a
budget of tokens; a lone job starts at once. Between two batches, every completion that is being
generated gets a token.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from firth.inference.embedding.embedder import BATCH_TOKENS
from firth.inference.generation.sequence_request import SequenceRequest
from firth.serve.sequence_scheduler import SequenceScheduler, StepTokenStream, timeout_error
from firth.serve.served_model import ServedModel
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics

# (model, settings, inputs) -> one result per input
Compute = Callable[[ServedModel, Any, Sequence[Any]], Sequence[Any]]


@dataclass(eq=False)
class BatchJob:
    """Inputs of one request, which the worker may compute together with those of others."""

    compute: Compute
    settings: Hashable
    inputs: Sequence[Any]
    tokens: int
    future: asyncio.Future[Sequence[Any]]
    deadline: float

    def joins(self, other: BatchJob) -> bool:
        """Return whether both can be computed by one call."""
        return self.compute is other.compute and self.settings == other.settings


class ModelWorker:
    """Runs jobs of one model in a thread of its own."""

    def __init__(self, served: ServedModel, config: ServeConfig, metrics: ServerMetrics) -> None:
        self.served, self.metrics, self.timeout = served, metrics, config.timeout
        device = served.model.network.device.type
        self.batch_tokens = config.batch_tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cuda"])
        self._jobs: deque[BatchJob] = deque()
        self._scheduler = SequenceScheduler(served, config, metrics)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(
            target=self._work, name=f"worker-{served.name}", daemon=True
        )
        self._thread.start()

    async def run(
        self,
        compute: Compute,
        settings: Hashable,
        inputs: Sequence[Any],
        tokens: Sequence[int],
    ) -> list[Any]:
        """Compute results for inputs of the given numbers of tokens, in order.

        Inputs beyond the token budget become several jobs, so that others are computed between.
        """
        loop, deadline = asyncio.get_running_loop(), time.monotonic() + self.timeout
        jobs = [
            BatchJob(compute, settings, inputs[a:b], size, loop.create_future(), deadline)
            for a, b in _spans(tokens, self.batch_tokens)
            for size in [sum(tokens[a:b])]
        ]
        with self._changed:
            self._jobs.extend(jobs)
            self._changed.notify()
        try:
            return [result for job in jobs for result in await job.future]
        finally:
            for job in jobs:
                job.future.cancel()

    @contextmanager
    def generate(self, requests: Sequence[SequenceRequest]) -> Iterator[StepTokenStream]:
        """Generate sequences; what is left of them at the end of the context is cancelled."""
        self._scheduler.check(requests)
        stream = StepTokenStream(requests, time.monotonic() + self.timeout)
        with self._changed:
            self._scheduler.submit(stream)
            self._changed.notify()
        try:
            yield stream
        finally:
            stream.cancel()

    def close(self) -> None:
        """Finish what is queued, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._scheduler.busy or self._closing)
                group = self._take_group()
                if not group and not self._scheduler.busy and self._closing:
                    return
            if group:
                self._run_group(group)
            if self._scheduler.busy:
                self._scheduler.advance()

    def _take_group(self) -> list[BatchJob]:
        """Remove the first job and those that can be computed with it, within the budget."""
        group: list[BatchJob] = []
        others: deque[BatchJob] = deque()
        tokens = 0
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.cancelled():
                continue
            fits = not group or (job.joins(group[0]) and tokens + job.tokens <= self.batch_tokens)
            (group if fits else others).append(job)
            tokens += job.tokens if fits else 0
        self._jobs = others
        return group

    def _run_group(self, group: list[BatchJob]) -> None:
        """Compute the results of jobs together; after an error, each alone."""
        now = time.monotonic()
        for job in [job for job in group if job.deadline < now]:
            _resolve(job.future, error=timeout_error())
        group = [job for job in group if job.deadline >= now]
        if not group:
            return
        inputs = [one for job in group for one in job.inputs]
        self.metrics.batch_inputs.labels(self.served.name).observe(len(inputs))
        self.metrics.batch_tokens.labels(self.served.name).observe(sum(job.tokens for job in group))
        try:
            with torch.no_grad():
                results = list(group[0].compute(self.served, group[0].settings, inputs))
        except Exception as error:
            if len(group) == 1:
                _resolve(group[0].future, error=error)
            else:
                for job in group:
                    self._run_group([job])
            return
        at = 0
        for job in group:
            _resolve(job.future, results[at : at + len(job.inputs)])
            at += len(job.inputs)


def _spans(tokens: Sequence[int], budget: int) -> list[tuple[int, int]]:
    """Divide inputs into consecutive parts of at most `budget` tokens, or of one input.

    >>> _spans([3, 4, 9, 1], 8)
    [(0, 2), (2, 3), (3, 4)]
    """
    spans, begin, total = [], 0, 0
    for i, size in enumerate(tokens):
        if i > begin and total + size > budget:
            spans.append((begin, i))
            begin, total = i, 0
        total += size
    return [*spans, (begin, len(tokens))] if len(tokens) else []


def _resolve(
    future: asyncio.Future[Any], result: Any = None, *, error: Exception | None = None
) -> None:
    """Set a future's result from the worker's thread; nothing if its request is gone."""

    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(resolve)
