"""A route of the API: reads and checks a request, calls its handler, answers in JSON."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from firth.serve.api_errors import ApiError, as_api_error, json_response
from firth.serve.model_pool import ModelPool
from firth.serve.request_body import parse_json, read_body
from firth.serve.request_fields import RequestFields
from firth.serve.sequence_scheduler import timeout_error
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics
from firth.utils.errors import FirthError

LONG_TEXT = 20_000  # characters from which on a text is tokenized outside of the event loop
CLIENT_GONE = 499  # status of a response that nobody reads; it is counted in the metrics
logger = logging.getLogger("firth.serve")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class ServerState:
    """What the handlers of a server share."""

    config: ServeConfig
    pool: ModelPool
    metrics: ServerMetrics


Handler = Callable[[ServerState, Any], Awaitable[Any]]


@dataclass(frozen=True)
class ApiRoute:
    """A method and path, the fields of its requests, and its handler.

    A handler returns JSON values or a response. A request of another method is answered by 405.
    """

    method: str
    path: str
    about: str
    handler: Handler
    fields: type[RequestFields] = RequestFields

    def starlette_route(self, state: ServerState) -> Route:
        """Return the route for Starlette."""

        async def endpoint(request: Request) -> Response:
            try:
                return await self._respond(state, request)
            except FirthError as error:
                return as_api_error(error).response()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log_unexpected(error, self.path)
                return unexpected_error(error).response()

        return Route(self.path, endpoint, methods=[self.method])

    async def _respond(self, state: ServerState, request: Request) -> Response:
        try:
            async with asyncio.timeout(state.config.timeout):
                values = await self._values(request, state.config.max_request_bytes)
                work = self.handler(state, self.fields.parse(values))
                found = await until_disconnected(request, work)
        except TimeoutError:
            raise timeout_error() from None
        except ClientDisconnect:  # while its body was read
            return Response(status_code=CLIENT_GONE)
        return found if isinstance(found, Response) else json_response(found)

    async def _values(self, request: Request, max_bytes: int) -> dict[str, Any]:
        """Return the parameters: those of the address, or the body."""
        if self.method == "GET":
            return {**request.query_params, **request.path_params}
        return parse_json(await read_body(request, max_bytes))


def log_unexpected(error: Exception, where: str) -> None:
    """Log an error without its message, which may contain a text of the request."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s in %s\n%s", type(error).__name__, where, frames)


def unexpected_error(error: Exception) -> ApiError:
    """Return the answer to an error that is not the request's fault, without its message."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ApiError(503, "The server is out of memory: send less at a time.", retry_after=1)
    return ApiError(500, f"Unexpected {type(error).__name__}; the server's log has more.")


async def until_disconnected(request: Request, work: Awaitable[Result]) -> Result | Response:
    """Wait for a result; cancel the work if the client disconnects before."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait([task, watch], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        watch.cancel()
        task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def off_loop(size: int, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function of a text of `size` characters, in a thread if it is long."""
    if size < LONG_TEXT:
        return function(*arguments)
    return await anyio.to_thread.run_sync(function, *arguments)
