"""Server-sent events: answers that are sent piece by piece."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from firth.serve.api_errors import ApiError
from firth.utils.errors import FirthError

DONE = "data: [DONE]\n\n"
logger = logging.getLogger("firth.serve")


class EventStream(StreamingResponse):
    """A response of JSON events; `resources` are closed at its end, or if the client is gone."""

    def __init__(self, events: AsyncIterator[dict[str, Any]], resources: ExitStack) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_encoded(events), media_type="text/event-stream", headers=headers)
        self.resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.resources:
            await super().__call__(scope, receive, send)


async def _encoded(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Encode events; an error after the start becomes the last event."""
    try:
        async for event in events:
            yield f"data: {json.dumps(event, allow_nan=False)}\n\n"
    except FirthError as error:
        known = error if isinstance(error, ApiError) else ApiError(400, str(error))
        yield f"data: {json.dumps(known.values())}\n\n"
    except Exception as error:
        logger.error("%s in a stream", type(error).__name__)
        yield f"data: {json.dumps(ApiError(500, 'Unexpected error.').values())}\n\n"
    yield DONE
