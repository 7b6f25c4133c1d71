"""Errors of the API, in OpenAI's JSON shape."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from firth.utils.errors import FirthError, NonFiniteError

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(FirthError):
    """A request that is answered with an error.

    >>> ApiError(400, "`top` must be at least 1.", param="top").values()["error"]["type"]
    'invalid_request_error'
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def values(self) -> dict[str, Any]:
        """Return the error as JSON values."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = TYPES.get(self.status, usual)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        """Return the HTTP response."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(self.values(), status=self.status, headers=headers)


def as_api_error(error: FirthError) -> ApiError:
    """Return the answer to an error: the request's fault (400), unless it says otherwise.

    >>> as_api_error(FirthError("The text is empty.")).status
    400
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, NonFiniteError):
        return ApiError(500, str(error), code="not_finite")
    return ApiError(400, str(error))


def json_response(
    values: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return values as JSON; characters outside ASCII are escaped, lone surrogates too."""
    body = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status_code=status, media_type="application/json", headers=headers)
