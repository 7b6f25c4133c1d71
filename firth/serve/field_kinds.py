"""Kinds of values in requests: each checks a JSON value, and has a JSON schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firth.serve.api_errors import ApiError
from firth.utils.surrogates import without_surrogates

MAX_TOKEN_ID = 1 << 31


@dataclass(frozen=True)
class FieldKind:
    """A kind of value: what it must be, in words, its check and its JSON schema."""

    about: str
    convert: Callable[[Any], Any]  # raises ValueError, possibly with a message
    schema: dict[str, Any]

    def read(self, value: Any, name: str) -> Any:
        """Check and convert a value.

        >>> integer(minimum=1).read(0, "top")
        Traceback (most recent call last):
        firth.serve.api_errors.ApiError: `top` must be an integer of at least 1.
        """
        try:
            return self.convert(value)
        except ValueError:
            raise ApiError(400, f"`{name}` must be {self.about}.", param=name) from None


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def _bounds(minimum: float | None, maximum: float | None) -> str:
    if minimum is None:
        return ""
    return f" of at least {minimum:,}" if maximum is None else f" from {minimum:,} to {maximum:,}"


def text(*, minimum: int = 0, maximum: int | None = None) -> FieldKind:
    """A string, limited in characters; lone surrogates, which are no text, are replaced."""

    def convert(value: Any) -> str:
        _check(isinstance(value, str) and len(value) >= minimum)
        _check(maximum is None or len(value) <= maximum)
        return without_surrogates(value)

    limit = "" if maximum is None else f" of {minimum:,} to {maximum:,} characters"
    return FieldKind(f"a string{limit}", convert, STRING)


def integer(*, minimum: int | None = None, maximum: int | None = None) -> FieldKind:
    """An integer within bounds."""

    def convert(value: Any) -> int:
        _check(isinstance(value, int) and not isinstance(value, bool))
        _check(minimum is None or value >= minimum)
        _check(maximum is None or value <= maximum)
        return value

    limits = {"minimum": minimum, "maximum": maximum}
    schema = {"type": "integer"} | {key: at for key, at in limits.items() if at is not None}
    return FieldKind(f"an integer{_bounds(minimum, maximum)}", convert, schema)


def number(*, minimum: float | None = None, maximum: float | None = None) -> FieldKind:
    """A number within bounds."""

    def convert(value: Any) -> float:
        _check(isinstance(value, int | float) and not isinstance(value, bool))
        _check(minimum is None or value >= minimum)
        _check(maximum is None or value <= maximum)
        return float(value)

    limits = {"minimum": minimum, "maximum": maximum}
    schema = {"type": "number"} | {key: at for key, at in limits.items() if at is not None}
    return FieldKind(f"a number{_bounds(minimum, maximum)}", convert, schema)


def boolean() -> FieldKind:
    """True or false."""

    def convert(value: Any) -> bool:
        _check(isinstance(value, bool))
        return value

    return FieldKind("true or false", convert, {"type": "boolean"})


def one_of(*values: str) -> FieldKind:
    """One of several strings."""

    def convert(value: Any) -> str:
        _check(isinstance(value, str) and value in values)
        return value

    return FieldKind(" or ".join(values), convert, {"type": "string", "enum": list(values)})


def list_of(item: FieldKind, about: str, *, minimum: int = 0, maximum: int = 1 << 20) -> FieldKind:
    """A list of values of one kind."""

    def convert(value: Any) -> list[Any]:
        _check(isinstance(value, list) and minimum <= len(value) <= maximum)
        return [item.convert(one) for one in value]

    schema = {"type": "array", "items": item.schema, "minItems": minimum}
    limit = f" (at most {maximum:,})" if maximum < 1 << 20 else ""
    return FieldKind(f"{about}{limit}", convert, schema)


def any_of(*kinds: FieldKind) -> FieldKind:
    """A value of one of several kinds."""

    def convert(value: Any) -> Any:
        for kind in kinds:
            try:
                return kind.convert(value)
            except ValueError:
                continue
        raise ValueError

    about = ", ".join(dict.fromkeys(kind.about for kind in kinds))
    head, comma, last = about.rpartition(", ")
    return FieldKind(
        f"{head} or {last}" if comma else last, convert, {"anyOf": [kind.schema for kind in kinds]}
    )


def token_map() -> FieldKind:
    """A map from token ids, as strings, to numbers from -100 to 100."""
    value_kind = number(minimum=-100, maximum=100)

    def convert(value: Any) -> dict[int, float]:
        _check(isinstance(value, dict) and all(key.isdecimal() and len(key) < 10 for key in value))
        return {int(key): value_kind.convert(one) for key, one in value.items()}

    schema = {"type": "object", "additionalProperties": value_kind.schema}
    return FieldKind("a map from token ids to numbers from -100 to 100", convert, schema)


STRING = {"type": "string"}
TEXT = text()
TOKEN_IDS = list_of(integer(minimum=0, maximum=MAX_TOKEN_ID), "a list of token ids", minimum=1)
MAX_INPUTS = 2048
TEXTS = any_of(TEXT, list_of(TEXT, "a list of strings", minimum=1, maximum=MAX_INPUTS))
