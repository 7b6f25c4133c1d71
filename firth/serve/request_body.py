"""Read the body of a request: a limit in bytes, and strict JSON."""

from __future__ import annotations

import json
from math import isfinite
from typing import Any, NoReturn

from starlette.requests import Request

from firth.serve.api_errors import ApiError

MAX_INTEGER = 1 << 64  # seeds are the largest integers of any request
MAX_DIGITS = 40


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read a body of at most `max_bytes`; the rest of a longer one is not read."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def parse_json(body: bytes) -> dict[str, Any]:
    r"""Parse one JSON object in UTF-8, without NaN, infinity or huge numbers.

    >>> parse_json(b'{"top": 3}')
    {'top': 3}
    >>> parse_json(b'{"top": NaN}')
    Traceback (most recent call last):
    firth.serve.api_errors.ApiError: The body is not valid JSON: NaN is no JSON number.
    """
    try:
        values = json.loads(
            body.decode(), parse_constant=_reject_constant, parse_int=_integer, parse_float=_number
        )
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not UTF-8: byte {error.start} is invalid.") from None
    except RecursionError:
        raise ApiError(400, "The body is not valid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {str(error)[:80].rstrip('.')}.") from None
    if not isinstance(values, dict):
        raise ApiError(400, 'The body must be a JSON object such as {"text": "…"}.')
    return values


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS or abs(value := int(digits)) > MAX_INTEGER:
        raise ValueError("an integer is too large")
    return value


def _number(digits: str) -> float:
    if len(digits) > 1000 or not isfinite(value := float(digits)):
        raise ValueError("a number is too large")
    return value


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The request is larger than {max_bytes:,} bytes, the server's limit.")
