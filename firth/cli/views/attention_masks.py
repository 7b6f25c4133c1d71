"""Terminal output of `presets --masks`: attention masks as squares, with their connections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text

from firth.models.attention_patterns import CONNECTIONS
from firth.models.transformer_config import require_transformer_config

if TYPE_CHECKING:
    from firth.models.attention_patterns import AttentionPattern
    from firth.models.presets import Preset

ABOUT = {
    "bidirectional": "every token attends to every token",
    "causal": "every token attends to itself and the tokens before it",
    "prefix": "the {prefix} tokens of the prefix attend to each other, later tokens causally",
    "cross": "every token of the decoder attends to every token of the encoder (here both have "
    "the same text)",
    "bidirectional window": "every token attends to at most {window} on each side",
    "causal window": "every token attends to itself and at most {window} before it",
}
KEY = (
    "Row: the token that attends (query). Column: the token attended to (key), by its number. "
    "■ may attend, · may not: there the attention score becomes -∞, and its softmax 0. Every word "
    "is one token, and special tokens are left out."
)
PER_HEAD = "The connections are those of one attention head in one layer; every head has the same."


def masks(
    row: Preset, words: Sequence[str], patterns: Sequence[AttentionPattern]
) -> list[RenderableType]:
    """Draw each mask, and count its connections."""
    parts: list[RenderableType] = [f"{row.name}, architecture: {row.config.architecture}. {KEY}"]
    for pattern in patterns:
        parts += [_title(pattern, row), _drawing(words, pattern), _count(pattern, row)]
    return [*parts, Text(f"\n{PER_HEAD}")]


def short_title(pattern: AttentionPattern) -> str:
    """Name a pattern for a figure.

    >>> from firth.models.attention_patterns import attention_patterns
    >>> from firth.models.presets import preset
    >>> [short_title(p) for p in attention_patterns(preset("t5-small").config, 2)]
    ['encoder: bidirectional', 'decoder: causal', 'cross']
    """
    if pattern.pattern == "cross":
        return "cross"
    return f"{pattern.attention.split()[0]}: {pattern.pattern}"


def values(pattern: AttentionPattern) -> dict[str, Any]:
    """Return a pattern for `--json`."""
    return {
        "attention": pattern.attention,
        "pattern": pattern.pattern,
        "layers": list(pattern.layers),
        "prefix": pattern.prefix,
        "window": pattern.window,
        "visible": pattern.visible.astype(int).tolist(),
        "connections": pattern.connections,
        "formula": CONNECTIONS[pattern.pattern].formula,
    }


def _title(pattern: AttentionPattern, row: Preset) -> Text:
    config = row.config
    stack = config.num_layers if "encoder s" in pattern.attention else config.num_output_layers
    layers = f"{len(pattern.layers)} of {stack} layers"
    if len(pattern.layers) < stack:
        layers += f": {', '.join(map(str, pattern.layers))}, counted from 0"
    about = ABOUT[pattern.pattern].format(prefix=pattern.prefix, window=pattern.window)
    title = Text(f"\n{pattern.attention}: {pattern.pattern}", "bold")
    return title.append(f" ({layers}): {about}", "not bold")


def _drawing(words: Sequence[str], pattern: AttentionPattern) -> Text:
    """Draw a mask with numbered tokens."""
    width = max(map(cell_len, words))
    drawing = Text(no_wrap=True)
    numbers = "".join(f"{i:>3}" for i in range(1, len(words) + 1))
    drawing.append(" " * (width + 5) + numbers + "\n", "dim")
    for number, (word, seen) in enumerate(zip(words, pattern.visible, strict=True), 1):
        drawing.append(f"  {number:>2} {set_cell_size(word, width)}")
        for may_attend in seen:
            drawing.append("  ■" if may_attend else "  ·", "bold blue" if may_attend else "dim")
        drawing.append("\n")
    drawing.rstrip()
    return drawing


def _count(pattern: AttentionPattern, row: Preset) -> str:
    """State the connections, their formula, and those at the model's full length."""
    n, longest = len(pattern.visible), row.config.max_positions
    symbols = f"n = {n}" + (f", p = {pattern.prefix}" if pattern.pattern == "prefix" else "")
    formula = CONNECTIONS[pattern.pattern].formula
    note = ""
    if pattern.window >= n:
        formula = CONNECTIONS[pattern.pattern.split()[0]].formula
        note = (
            f" The window of {pattern.window:,} tokens is longer than this text, so it hides "
            "nothing here; --window 1 draws a narrow one."
        )
    elif pattern.window:
        symbols += f", w = {pattern.window}"
    full = ""
    if longest > n and pattern.window in (0, require_transformer_config(row.config).window):
        full = f" At the model's full length, n = {longest:,}: {pattern.connections_at(longest):,}."
    return f"  {pattern.connections} connections: {formula} with {symbols}.{full}{note}"
