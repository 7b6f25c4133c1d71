"""Requests as dataclasses: JSON values are checked, and unknown parameters rejected by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from firth.serve.api_errors import ApiError
from firth.serve.field_kinds import FieldKind, text
from firth.utils.errors import suggest

Fields = TypeVar("Fields", bound="RequestFields")


def parameter(help: str, kind: FieldKind, default: Any = MISSING) -> Any:
    """Declare a parameter of a request: a dataclass field with its help and kind."""
    details = {"help": help, "kind": kind}
    if default is MISSING:
        return field(metadata=details)
    return field(default=default, metadata=details)


@dataclass(frozen=True, kw_only=True)
class RequestFields:
    """The parameters of a request.

    `neutral` are parameters of OpenAI's API that are not supported, with values that have no
    effect there: those are accepted, others rejected.
    """

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    model: str | None = parameter(
        "Name of a served model; may be omitted if only one can do it.", text(), None
    )

    @classmethod
    def parse(cls: type[Fields], values: Mapping[str, Any]) -> Fields:
        """Check JSON values; null means that a parameter is not given.

        >>> RequestFields.parse({"modle": "gpt2"})
        Traceback (most recent call last):
        firth.serve.api_errors.ApiError: Unknown parameter `modle`: did you mean model?
        """
        known = {one.name: one for one in fields(cls)}
        given: dict[str, Any] = {}
        for name, value in values.items():
            if name in known:
                if value is not None:
                    given[name] = known[name].metadata["kind"].read(value, name)
            elif value is not None and not cls._is_neutral(name, value):
                raise cls._unknown(name, known)
        for name, one in known.items():
            if name not in given and is_required(one):
                raise ApiError(400, f"`{name}` is missing.", param=name)
        return cls(**given)

    @classmethod
    def _is_neutral(cls, name: str, value: Any) -> bool:
        return any(value == one and type(value) is type(one) for one in cls.neutral.get(name, ()))

    @classmethod
    def _unknown(cls, name: str, known: Mapping[str, Any]) -> ApiError:
        if name in cls.neutral:
            message = f"`{name}` is not supported: remove it."
        else:
            message = f"Unknown parameter `{name[:80]}`: {suggest(name[:80], known)}"
        return ApiError(400, message, param=name[:80], code="unsupported_parameter")


def is_required(one: Field[Any]) -> bool:
    """Return whether a parameter has no default."""
    return one.default is MISSING
