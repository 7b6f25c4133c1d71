"""Admission of requests: a queue that is bounded in tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

from firth.serve.api_errors import ApiError

RECENT = 64  # finished requests from which the rate is estimated
MAX_RETRY = 60  # seconds
CHARACTERS_PER_TOKEN = 4  # about, in English


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text that is not tokenized yet.

    >>> estimate_tokens("A dog barked.")
    4
    """
    return 1 + len(text) // CHARACTERS_PER_TOKEN


class Admission:
    """Counts the tokens of requests that wait or run; beyond the limit, requests are rejected.

    A request larger than the limit is admitted if nothing else waits.

    >>> admission = Admission(100)
    >>> with admission.reserve(80):
    ...     with admission.reserve(30):
    ...         pass
    Traceback (most recent call last):
    firth.serve.api_errors.ApiError: The server is busy: 80 of at most 100 tokens are waiting; \
try again in 1 s.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.tokens = limit, 0
        self._finished: deque[tuple[float, int]] = deque(maxlen=RECENT)  # time, tokens

    @contextmanager
    def reserve(self, tokens: int) -> Iterator[None]:
        """Count a request's tokens until its end; raise a 429 if they do not fit."""
        if self.tokens and self.tokens + tokens > self.limit:
            seconds = self.retry_after()
            raise ApiError(
                429,
                f"The server is busy: {self.tokens:,} of at most {self.limit:,} tokens are "
                f"waiting; try again in {seconds} s.",
                code="rate_limit_exceeded",
                retry_after=seconds,
            )
        self.tokens += tokens
        try:
            yield
        finally:
            self.tokens -= tokens
            self._finished.append((time.monotonic(), tokens))

    def retry_after(self) -> int:
        """Estimate in how many seconds half of the waiting tokens will be finished."""
        if len(self._finished) < 2:
            return 1
        seconds = time.monotonic() - self._finished[0][0]
        rate = sum(tokens for _, tokens in self._finished) / max(seconds, 1e-3)
        return min(MAX_RETRY, max(1, ceil(self.tokens / 2 / max(rate, 1.0))))
