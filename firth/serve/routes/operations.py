"""`/health`, `/metrics`, `/v1/models`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from firth.serve.api_errors import json_response
from firth.serve.api_route import ApiRoute, ServerState
from firth.serve.field_kinds import TEXT
from firth.serve.request_fields import RequestFields, parameter


@dataclass(frozen=True, kw_only=True)
class ModelName(RequestFields):
    """The path of `/v1/models/NAME`."""

    name: str = parameter("Name of a served model.", TEXT)


async def health(state: ServerState, fields: RequestFields) -> Response:
    """Answer 200 if all models are loaded, else 503."""
    ready = state.pool.ready
    status = "ok" if ready else "loading"
    return json_response({"status": status}, status=200 if ready else 503)


async def metrics(state: ServerState, fields: RequestFields) -> Response:
    """Return the metrics in the text format of Prometheus."""
    return Response(state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(state: ServerState, fields: RequestFields) -> dict[str, Any]:
    """List the models that are loaded, and what each can do."""
    data = [entry.served.values() for entry in list(state.pool.entries.values())]
    return {"object": "list", "data": data}


async def model(state: ServerState, fields: ModelName) -> dict[str, Any]:
    """Return one of the models."""
    return state.pool.named(fields.name).served.values()


ROUTES = (
    ApiRoute("GET", "/health", "Whether the models are loaded (200) or not yet (503).", health),
    ApiRoute("GET", "/metrics", "Metrics for Prometheus.", metrics),
    ApiRoute("GET", "/v1/models", "The served models and what each can do.", models),
    ApiRoute("GET", "/v1/models/{name:path}", "One of the models.", model, ModelName),
)
