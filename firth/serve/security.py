"""Who may call the server: API key, Host header, and pages of other origins (CORS)."""

from __future__ import annotations

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from firth.serve.api_errors import ApiError
from firth.serve.server_config import ServeConfig

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Pages without any data; what they call needs the key.
PUBLIC_PATHS = frozenset(["/", "/health", "/docs", "/openapi.json"])
PUBLIC_FOLDER = "/playground/files/"  # scripts and styles of the playground


class AccessControl:
    """Middleware that rejects requests with a wrong Host header or without the API key.

    A page of another site can point its own name to 127.0.0.1 (DNS rebinding), and then call a
    server on this machine; the Host header tells, because it has the name of that site.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, api_key: str | None) -> None:
        self.app, self.key = app, api_key.encode() if api_key else None
        self.hosts = allowed_hosts(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._error(scope)) is not None:
            await error.response()(scope, receive, send)
        elif scope["type"] != "websocket":
            await self.app(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and host_name(headers.get("host", "")) not in self.hosts:
            return ApiError(
                403, "The Host header is not a name of this server (--allow-host).", code="host"
            )
        path = scope["path"]
        if self.key is None or path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER):
            return None
        kind, _, given = headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self.key)
        if kind.lower() != "bearer" or not same:
            return ApiError(
                401, "The API key is missing or wrong: send `Authorization: Bearer KEY`."
            )
        return None


def allowed_hosts(config: ServeConfig) -> Collection[str] | None:
    """Return the names that a Host header may have; None: any, for an open address with a key.

    >>> sorted(allowed_hosts(ServeConfig()))
    ['127.0.0.1', '::1', 'localhost']
    """
    if not config.is_local and not config.allow_hosts:
        return None
    own = (config.host,) if config.host not in ("0.0.0.0", "::") else ()
    return {name.lower() for name in (*LOCAL_NAMES, *own, *config.allow_hosts)}


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port.

    >>> host_name("localhost:8000"), host_name("[::1]:8000")
    ('localhost', '::1')
    """
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
