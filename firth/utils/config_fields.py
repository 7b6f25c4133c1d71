"""Docs of config fields, which are also options of the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from firth.utils.errors import UsageError

Config = TypeVar("Config")

# Fields whose option has another name.
FLAGS = {"learning_rate": "lr", "source": "from", "overrides": "set", "columns": "column"}


@dataclass(frozen=True)
class Doc:
    """The doc of a config field: `seed: Annotated[int, Doc("Random seed.")] = 0`."""

    help: str  # of its option
    panel: str = ""  # the group of its option in `--help`, if not that of most fields
    kind: Any = None  # type of the option, if it is not that of the field
    metavar: str | None = None
    min: float | None = None
    flags: str | None = None  # names of the option, if they do not follow from that of the field


def flag(name: str) -> str:
    """Return the command-line option of a field.

    >>> flag("learning_rate"), flag("objective.mask_prob")
    ('--lr', '--mask-prob')
    """
    name = name.rpartition(".")[2]
    return "--" + FLAGS.get(name, name).rstrip("_").replace("_", "-")


def config_of(config: type[Config], arguments: Mapping[str, Any]) -> Config:
    """Build a config from the arguments of a function, which have the limits of the options.

    `config_of(PromptConfig, locals())` is called in `prompt`.
    """
    values = {}
    for field in fields(config):  # type: ignore[arg-type]
        values[field.name] = value = arguments[field.name]
        for doc in getattr(field.type, "__metadata__", ()):
            least = doc.min if isinstance(value, int | float) else None
            if least is not None and value < least:
                raise UsageError(f"{flag(field.name)} must be at least {least:g}, not {value}.")
    return config(**values)
