"""`/openapi.json` and `/docs`: a description of all routes, from the fields of their requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

import firth
from firth.serve.api_errors import json_response
from firth.serve.api_route import ApiRoute
from firth.serve.request_fields import RequestFields, is_required

ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
summary { cursor: pointer; padding: 0.4rem 0; }
table { border-collapse: collapse; margin: 0.5rem 0 1rem; width: 100%; }
td, th { border-bottom: 1px solid #8884; padding: 0.3rem 0.6rem; text-align: left; }
td { vertical-align: top; }
"""


def make_openapi(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """Return the OpenAPI description (version 3.1) of routes."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    schemas = {route.fields.__name__: _schema(route.fields) for route in routes}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Firth", "version": firth.__version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    """Describe a route."""
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: dict[str, Any] = {
        "summary": route.about,
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {}}},
            "default": {"description": "An error.", "content": failed},
        },
    }
    if route.method == "GET":
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in path_parameters(route.path)
        ]
        return found
    reference = {"$ref": f"#/components/schemas/{route.fields.__name__}"}
    body = {"application/json": {"schema": reference}}
    return {**found, "requestBody": {"required": True, "content": body}}


def path_parameters(path: str) -> list[str]:
    """Return the names in braces of a path.

    >>> path_parameters("/v1/models/{name:path}")
    ['name']
    """
    return [part.partition("}")[0].partition(":")[0] for part in path.split("{")[1:]]


def _schema(kind: type[RequestFields]) -> dict[str, Any]:
    """Return the JSON schema of requests."""
    properties = {
        one.name: {**one.metadata["kind"].schema, "description": one.metadata["help"]}
        for one in fields(kind)
    }
    required = [one.name for one in fields(kind) if is_required(one)]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def make_page(routes: Sequence[ApiRoute]) -> str:
    """Return the description as a page without scripts and outside resources."""
    parts = "".join(map(_section, routes))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Firth: API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>Firth {escape(firth.__version__)}: API</h1>"
        '<p>Requests and answers are JSON. Machine-readable: <a href="openapi.json">'
        f'openapi.json</a>. <a href="/">Playground</a>.</p>{parts}</html>'
    )


def _section(route: ApiRoute) -> str:
    """Return a section of the page: a route with a table of its parameters."""
    heading = f"<b><code>{route.method} {escape(route.path.replace(':path}', '}'))}</code></b>"
    rows = []
    for one in fields(route.fields):
        name = escape(one.name) + (" (required)" if is_required(one) else "")
        details = escape(one.metadata["kind"].about), escape(one.metadata["help"])
        rows.append(f"<tr><td><code>{name}</code></td><td>{details[0]}</td><td>{details[1]}</td>")
    table = "<tr><th>parameter</th><th>value</th><th>meaning</th></tr>" + "".join(rows)
    about = escape(route.about)
    return f"<details><summary>{heading} {about}</summary><table>{table}</table></details>"


def description_routes(routes: Sequence[ApiRoute]) -> list[Route]:
    """Return the routes of the description and of its page."""
    values, page = make_openapi(routes), make_page(routes)

    async def openapi(request: Request) -> Response:
        return json_response(values)

    async def docs(request: Request) -> Response:
        return HTMLResponse(page)

    return [Route("/openapi.json", openapi), Route("/docs", docs)]
