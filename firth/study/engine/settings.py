"""The settings of a study: the fields of a frozen dataclass, set by the budget and by the user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_type_hints

from firth.study.engine.study import Study
from firth.training.config import parse_value, unknown_setting
from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """A setting of a study: what it means, and its value in each budget."""

    name: str
    meaning: str
    values: Mapping[str, Any]


def settings_of(study: Study) -> list[Setting]:
    """Return the settings of a study."""
    hints, small = get_type_hints(study.settings, include_extras=True), study.settings()
    found = []
    for field in fields(study.settings):
        default = getattr(small, field.name)
        changed = {"small": {}, "medium": study.medium, "large": study.large}
        values = {budget: row.get(field.name, default) for budget, row in changed.items()}
        found.append(Setting(field.name, _doc(hints[field.name]).help, values))
    return found


def make_settings(study: Study, budget: str, overrides: Mapping[str, Any]) -> Any:
    """Build the settings of a study: those of the budget, with overrides."""
    names = [field.name for field in fields(study.settings)]
    for name in overrides:
        if name not in names:
            raise unknown_setting(name, names)
    changed = {"small": {}, "medium": study.medium, "large": study.large}[budget]
    kinds = get_type_hints(study.settings)
    given = {name: _parsed(name, value, kinds[name]) for name, value in overrides.items()}
    _check_minimums(study, given)
    return study.settings(**{**changed, **given})


def _doc(hint: Any) -> Doc:
    (doc,) = hint.__metadata__
    assert isinstance(doc, Doc)
    return doc


def _check_minimums(study: Study, given: Mapping[str, Any]) -> None:
    """Raise UsageError for a number, or an item of a list, below the minimum of its setting."""
    hints = get_type_hints(study.settings, include_extras=True)
    for name, value in given.items():
        least = _doc(hints[name]).min
        for item in value if isinstance(value, tuple) else (value,):
            if least is not None and not (isinstance(item, int | float) and item >= least):
                raise UsageError(f"{name} must be at least {least:g}, not {item!r}.")


def _parsed(name: str, value: Any, kind: Any) -> Any:
    """Convert the text of a setting to its type.

    >>> _parsed("labels", "10,100", tuple[int, ...]), _parsed("model", "a,b", tuple[str, ...])
    ((10, 100), ('a', 'b'))
    """
    items = get_args(kind)
    if not items or ... not in items:
        return parse_value(name, value, getattr(kind, "__name__", str(kind)))
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise UsageError(f"{name} must be a list such as 10,100, not {value!r}.")
    parsed = (parse_value(name, part, items[0].__name__) for part in parts)
    return tuple(part.strip() if isinstance(part, str) else part for part in parsed)
