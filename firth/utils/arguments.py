"""Arguments of public functions: their types, and how error messages name them."""

from __future__ import annotations

import errno
import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from firth.utils.config_fields import flag
from firth.utils.errors import FirthError, UsageError, short_path

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

NOUNS: dict[Any, str] = {
    **{str: "string", int: "integer", float: "number", bool: "boolean"},
    **{Sequence: "list", Mapping: "dict", Callable: "function", Any: "value"},
}
# What messages name: a command, an option such as --top, an option such as --column text=NAME.
OPTION = re.compile(r"`[^`]*`|(?<![\w-])(--[a-z][a-z-]*)(?: ([\w.]+)=([\w.…]*[\w…]))?")


def check_arguments(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Check the arguments of each call against the type annotations of the function.

    Numbers and lists of numpy and pandas become those of Python, and `1e4` an integer if one is
    needed. Errors name arguments where they are written with options of the command line.

    >>> @check_arguments
    ... def train(*, steps: int, out: str | None = None) -> int:
    ...     return steps
    >>> train(steps=1e4)
    10000
    >>> train(steps="20")
    Traceback (most recent call last):
    firth.utils.errors.UsageError: `steps` is an integer, not str ('20').
    """
    signature = inspect.signature(function)
    annotations = cache(lambda: get_type_hints(function))

    @wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # too many or too few: Python says which
            return function(*args, **kwargs)
        for name, value in bound.arguments.items():
            kind = annotations().get(name, Any)
            bound.arguments[name] = _checked(name, value, kind)
            if isinstance(value, str) and not value and _is_path(kind):
                raise UsageError(f"`{name}` is empty.")
        try:
            return function(*bound.args, **bound.kwargs)
        except FirthError as error:
            error.args = (as_arguments(str(error), signature.parameters), *error.args[1:])
            raise
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            name = short_path(error.filename or "The path")
            raise UsageError(f"{name} is too long for the name of a file.") from None

    return checked


def as_arguments(message: str, names: Iterable[str]) -> str:
    """Replace the options that a message names by arguments of a Python function.

    >>> as_arguments("--lr needs --column text=NAME; see `firth --help`.", ["learning_rate"])
    '`learning_rate` needs --column text=NAME; see `firth --help`.'
    >>> as_arguments("choose with --column text_a=NAME --column text_b=NAME.", ["columns"])
    "choose with `columns={'text_a': 'NAME', 'text_b': 'NAME'}`."
    """
    arguments = {flag(name): name for name in names}

    def argument(found: re.Match[str]) -> str:
        option, key, value = found.groups()
        if option not in arguments:
            return found[0]
        return f"`{arguments[option]}" + (f"={{'{key}': '{value}'}}`" if key else "`")

    return re.sub(r"}` `\w+={", ", ", OPTION.sub(argument, message))


def shown(value: Any) -> str:
    """Return the type of a value and its beginning, for messages.

    >>> shown(None), shown("20")
    ('None', "str ('20')")
    """
    if value is None:
        return "None"
    return f"{type(value).__name__} ({' '.join(reprlib.repr(value).split())})"


def _checked(name: str, value: Any, kind: Any) -> Any:
    if _is_a(value, kind):
        return value
    has_list = hasattr(value, "tolist") and not isinstance(value, type)  # of numpy, pandas, torch
    plain = value.tolist() if has_list else value
    if _is_a(plain, kind):
        return plain
    if isinstance(plain, float) and plain.is_integer() and _is_a(int(plain), kind):
        return int(plain)
    raise UsageError(f"`{name}` is {_listed(_nouns(kind))}, not {shown(value)}.")


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of the type of an annotation; the items of a list as well."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_a(value, part) for part in parts)
    if origin is Iterable:  # any table, some of which cannot be iterated
        return True
    try:
        found = isinstance(value, (int, float) if origin is float else origin)
    except TypeError:  # Any, a protocol: checked where it is used
        return True
    numbers, lists = isinstance(value, bool) and origin in (int, float), origin is Sequence
    if not found or numbers or (lists and isinstance(value, str)):
        return False
    if origin is Mapping:
        return all(_is_a(key, parts[0]) and _is_a(one, parts[1]) for key, one in value.items())
    return not lists or all(_is_a(one, parts[0]) for one in value)


def _is_path(kind: Any) -> bool:
    """Return whether the strings of an annotation are paths, not texts."""
    return Path in get_args(kind) and not any(map(get_origin, get_args(kind)))


def _nouns(kind: Any, plural: str = "") -> list[str]:
    """Name the types that an annotation accepts.

    >>> _nouns(str | Sequence[int] | Mapping[str, Any] | None)
    ['a string', 'a list of integers', 'a dict of strings to values', 'None']
    """
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return [noun for part in parts for noun in _nouns(part, plural)]
    if kind is NoneType:
        return ["None"]
    noun = NOUNS.get(origin, getattr(origin, "__name__", "value")) + plural
    if origin in (Sequence, Mapping):
        noun += " of " + " to ".join(_listed(_nouns(part, "s")) for part in parts)
    return [noun if plural else f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"]


def _listed(nouns: Sequence[str]) -> str:
    """Join nouns.

    >>> _listed(["a string", "a Path", "None"])
    'a string, a Path or None'
    """
    return " or ".join(filter(None, [", ".join(nouns[:-1]), nouns[-1]]))
