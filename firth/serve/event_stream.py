"""Server-sent events: answers that are sent piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from firth.serve.api_errors import as_api_error
from firth.serve.api_route import log_unexpected, unexpected_error
from firth.utils.errors import FirthError

DONE = "data: [DONE]\n\n"
GRACE = 5.0  # seconds after the deadline in which the client can read the rest


class EventStream(StreamingResponse):
    """A response of JSON events.

    `resources` are closed at its end, if the client is gone, or if it reads too slowly: soon after
    `timeout` seconds, which the generation of the events must not exceed either.
    """

    def __init__(
        self, events: AsyncIterator[dict[str, Any]], resources: ExitStack, timeout: float
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_encoded(events), media_type="text/event-stream", headers=headers)
        self.resources, self.timeout = resources, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.resources, suppress(TimeoutError):
            async with asyncio.timeout(self.timeout + GRACE):
                await super().__call__(scope, receive, send)


async def _encoded(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Encode events; an error after the start becomes the last event."""
    try:
        async for event in events:
            yield f"data: {json.dumps(event, allow_nan=False)}\n\n"
    except FirthError as error:
        yield f"data: {json.dumps(as_api_error(error).values())}\n\n"
    except Exception as error:
        log_unexpected(error, "a stream")
        yield f"data: {json.dumps(unexpected_error(error).values())}\n\n"
    yield DONE
