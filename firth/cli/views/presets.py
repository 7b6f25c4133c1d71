"""Terminal output of `presets`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from firth.cli.terminal import new_table

if TYPE_CHECKING:
    from firth.models.presets import Preset


def presets(rows: Sequence[Preset]) -> RenderableType:
    """List all presets, one line each; a narrow terminal truncates the source."""
    lines = [_PRESET_COLUMNS, *map(_line, rows)]
    text = Text(no_wrap=True, overflow="ellipsis")
    widths = {name: max(len(str(line[name])) for line in lines) for name in _PRESET_COLUMNS}
    for number, line in enumerate(lines):
        cells = [
            f"{line[name]:<{width}}" if name in _PRESET_WORDS else f"{line[name]:>{width}}"
            for name, width in widths.items()
        ]
        numbers = " ".join(cells[2:-1])  # one space, to fit into 80 columns
        joined = "  ".join([*cells[:2], numbers, cells[-1]])
        text.append(f"{joined.rstrip()}\n", "bold" if number == 0 else "")
    text.rstrip()
    return Group(text)  # not joined with other text, which would wrap it


def _line(row: Preset) -> dict[str, Any]:
    """Return the values of a line; what a kind of network does not have is a dash."""
    values = row.values()
    if values["parameters"] is not None:
        values["parameters"] = _short(values["parameters"])
    return {name: "–" if value is None else value for name, value in values.items()}


_PRESET_WORDS = ("name", "architecture", "source")
_PRESET_COLUMNS: dict[str, Any] = {
    "name": "preset",
    "architecture": "architecture",
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_heads": "heads",
    "parameters": "size",
    "max_positions": "length",
    "vocab_size": "vocab",
    "source": "source",
}


def _short(number: int) -> str:
    """Abbreviate a number of parameters.

    >>> _short(109_482_240), _short(6_738_415_616)
    ('109.5M', '6.74B')
    """
    return f"{number / 1e6:.1f}M" if number < 1e9 else f"{number / 1e9:.2f}B"


def embedded(models: Mapping[str, str]) -> list[RenderableType]:
    """List the trained models that are part of the package."""
    lines = [f"{name}  {about}" for name, about in models.items()]
    return ["", Text("Embedded models, trained, as MODEL of any command", "bold"), *lines]


def preset(row: Preset) -> list[RenderableType]:
    """Show all config fields of a preset."""
    rows = [(name, str(value)) for name, value in row.config.to_dict().items()]
    about = f"{row.name}: {row.parameters:,} parameters with {', '.join(row.heads)}. {row.source}."
    return [about, new_table("field", "value", rows=rows)]


def fitted_preset(row: Preset, settings: Mapping[str, Any]) -> list[RenderableType]:
    """Show the settings of a preset that is fitted without the training loop."""
    about = f"{row.name}: the vocabulary is that of the tokenizer. {row.source}."
    rows = [(name, str(value)) for name, value in settings.items()]
    return [about, *([new_table("--set", "default", rows=rows)] if rows else [])]
