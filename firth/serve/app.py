"""The web application: the table of routes, their middleware, start and end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from firth.model import Model
from firth.serve.api_errors import ApiError
from firth.serve.api_route import ServerState
from firth.serve.model_pool import Loader, ModelPool
from firth.serve.openapi import description_routes
from firth.serve.playground import playground_routes
from firth.serve.playground.page import page_routes
from firth.serve.routes import (
    chat,
    completions,
    embeddings,
    operations,
    rerank,
    task_routes,
    tokens,
)
from firth.serve.security import AccessControl
from firth.serve.server_config import ServeConfig
from firth.serve.server_metrics import ServerMetrics

ROUTES = (
    *operations.ROUTES,
    *completions.ROUTES,
    *chat.ROUTES,
    *embeddings.ROUTES,
    *rerank.ROUTES,
    *task_routes.ROUTES,
    *tokens.ROUTES,
    *playground_routes.ROUTES,
)
CORS_MAX_AGE = 600  # seconds that a browser keeps the answer about an origin


def make_app(
    models: Mapping[str, Model | Loader],
    config: ServeConfig | None = None,
    *,
    api_key: str | None = None,
    on_load: Callable[[BaseException | None], None] = lambda error: None,
) -> Starlette:
    """Make the application that serves models by name.

    Functions in place of models are called in a thread after the start; until then `/health`
    answers 503. `on_load` is called when all are loaded, or with the error.
    """
    config = config or ServeConfig()
    config.check_api_key(api_key)
    metrics = ServerMetrics()
    pool = ModelPool({name: _loader(model) for name, model in models.items()}, config, metrics)
    state = ServerState(config, pool, metrics)
    routes = [route.starlette_route(state) for route in ROUTES]
    routes += page_routes(key_required=bool(api_key))
    routes += description_routes(ROUTES)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if all(isinstance(model, Model) for model in models.values()):
            pool.load()
            on_load(None)
        else:
            pool.start_loading(lambda: on_load(pool.error))
        yield
        pool.close()

    return Starlette(
        routes=routes,
        middleware=_middleware(config, api_key, metrics, routes),
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )


def _loader(model: Model | Loader) -> Loader:
    return (lambda: model) if isinstance(model, Model) else model


def _middleware(
    config: ServeConfig, api_key: str | None, metrics: ServerMetrics, routes: list[Route]
) -> list[Middleware]:
    """Return the middleware, the outermost first."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(config.allow_origins),
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        max_age=CORS_MAX_AGE,
    )
    return [
        Middleware(RequestMetrics, metrics=metrics, routes=routes),
        *([cors] if config.allow_origins else []),
        Middleware(AccessControl, config=config, api_key=api_key),
    ]


def _http_error(request: Request, error: Exception) -> Response:
    """Answer an unknown path (404) or method (405) in the shape of all errors."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:80]}: {error.detail}; /docs lists the routes."
    return ApiError(error.status_code, message).response()


class RequestMetrics:
    """Middleware that counts and times requests, by route."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, routes: list[Route]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, start = [500], time.monotonic()
        path = self._path(scope)

        async def watched_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        with self.metrics.running.track_inprogress():
            try:
                await self.app(scope, receive, watched_send)
            finally:
                self.metrics.requests.labels(path, str(status[0])).inc()
                self.metrics.seconds.labels(path).observe(time.monotonic() - start)

    def _path(self, scope: Scope) -> str:
        """Return the path of the route, which names no model and no text."""
        found = (route.path for route in self.routes if route.matches(scope)[0] != Match.NONE)
        return next(found, "other")
