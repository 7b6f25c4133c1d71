"""Generation in a worker: sequences wait, join the running batch, and leave it when they end."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import count

from firth.inference.batching import nan_error
from firth.inference.generation.continuous_batching import ContinuousBatch
from firth.inference.generation.sequence_request import SequenceRequest, StepToken
from firth.inference.generation.text_generation import BATCH_TOKENS
from firth.serve.api_errors import ApiError
from firth.serve.served_model import ServedModel
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics

Event = tuple[int, StepToken] | Exception  # the number of a sequence and its next token


def timeout_error() -> ApiError:
    """Return the error of a request that took too long."""
    return ApiError(503, "The request took longer than the server's --timeout.", code="timeout")


class StepTokenStream:
    """The tokens of the sequences of one request, as they are generated."""

    def __init__(self, requests: Sequence[SequenceRequest], deadline: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.jobs = [SequenceJob(one, self, i) for i, one in enumerate(requests)]
        self.deadline = deadline
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, StepToken]]:
        """Yield the number of a sequence and its next token until all have ended."""
        while not all(job.ended for job in self.jobs):
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            number, token = event
            if self.jobs[number].ended:
                continue
            self.jobs[number].ended = bool(token.finish)
            yield event

    def stop(self, number: int) -> None:
        """End a sequence: a stop string was found."""
        self.jobs[number].ended = self.jobs[number].cancelled = True

    def cancel(self) -> None:
        """End all sequences that have not ended."""
        for job in self.jobs:
            job.cancelled = True

    def put(self, events: Sequence[Event]) -> None:
        """Add events from the worker's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._put, events)

    def _put(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put_nowait(event)


@dataclass(eq=False)
class SequenceJob:
    """One sequence of a request."""

    request: SequenceRequest
    stream: StepTokenStream
    number: int  # in its request
    cancelled: bool = False  # by the request; read by the worker's thread
    ended: bool = False


class SequenceScheduler:
    """The sequences of one model; all but `submit` runs in the worker's thread."""

    def __init__(self, served: ServedModel, config: ServeConfig, metrics: ServerMetrics) -> None:
        self.served, self.metrics, self.max_sequences = served, metrics, config.max_sequences
        device = served.model.network.device.type
        self.max_tokens = config.cache_tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])
        self._waiting: deque[SequenceJob] = deque()
        self._running: dict[int, SequenceJob] = {}
        self._batch: ContinuousBatch | None = None
        self._keys = count()

    @property
    def busy(self) -> bool:
        """Whether sequences wait or run."""
        return bool(self._waiting or self._running)

    def submit(self, stream: StepTokenStream) -> None:
        """Queue the sequences of a request; the worker's lock must be held."""
        self._waiting.extend(stream.jobs)

    def advance(self) -> None:
        """Drop cancelled sequences, let waiting ones join, and generate one token of each."""
        try:
            self._drop()
            self._join()
            tokens = self._batch.step() if self._batch is not None else []
        except Exception as error:  # of the network: no sequence can go on
            for job in self._running.values():
                job.stream.put([error])
            self._running, self._batch = {}, None
            return
        self._deliver(tokens)
        self.metrics.sequences.labels(self.served.name).set(len(self._running))

    def _drop(self) -> None:
        """Remove sequences that are cancelled or late."""
        now = time.monotonic()
        for key, job in list(self._running.items()):
            if self._is_over(job, now):
                assert self._batch is not None
                self._batch.remove(key)
                del self._running[key]

    def _is_over(self, job: SequenceJob, now: float) -> bool:
        if not job.cancelled and job.stream.deadline < now:
            job.cancelled = True
            job.stream.put([timeout_error()])
        return job.cancelled

    def _join(self) -> None:
        """Add waiting sequences, in their order, as far as they fit."""
        if self._batch is None:
            self._batch = ContinuousBatch(
                self.served.model.network,
                max_sequences=self.max_sequences,
                max_tokens=self.max_tokens,
            )
        added: dict[int, SequenceJob] = {}
        now = time.monotonic()
        while self._waiting:
            job = self._waiting[0]
            requests = [one.request for one in added.values()]
            if not self._is_over(job, now):
                if not self._batch.fits(*requests, job.request):
                    break
                added[next(self._keys)] = job
            self._waiting.popleft()
        self._running |= added
        self._batch.add({key: job.request for key, job in added.items()})

    def check(self, requests: Sequence[SequenceRequest]) -> None:
        """Raise an error for a sequence that the model or the cache can never hold."""
        for request in requests:
            request.check(self.served.model.network)
            if request.size > self.max_tokens:
                raise ApiError(
                    400,
                    f"Prompt and completion have up to {request.size:,} tokens, but the server's "
                    f"cache holds {self.max_tokens:,} (--cache-tokens): ask for fewer.",
                    param="max_tokens",
                )

    def _deliver(self, tokens: Sequence[StepToken]) -> None:
        """Send tokens to the streams of their requests."""
        events: dict[StepTokenStream, list[Event]] = defaultdict(list)
        for token in tokens:
            assert isinstance(token.key, int)
            job = self._running[token.key]
            invalid = token.finish == "invalid"
            events[job.stream].append(nan_error() if invalid else (job.number, token))
            if token.finish:
                del self._running[token.key]
        for stream, own in events.items():
            stream.put(own)
        if tokens:
            self.metrics.tokens.labels(self.served.name, "generated").inc(len(tokens))
