"""Terminal output of `objectives`: inputs and targets as coloured text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import new_table
from firth.cli.views.tokenizers import readable

if TYPE_CHECKING:
    from firth.objectives.preview import ObjectivePreview, PreviewToken

ROLES = {
    "text": "",
    "special": "dim",
    "hidden": "bold white on red",
    "changed": "black on magenta",
    "kept": "black on yellow",
    "prefix": "underline",
}
KEY = {
    "special": "special token",
    "hidden": "hidden",
    "changed": "replaced by another token",
    "kept": "selected, but unchanged",
    "prefix": "prefix",
}


class TokenGrid:
    """Rows of tokens, one column for each position; folded at the width of the terminal."""

    def __init__(self, rows: Mapping[str, Sequence[Text]]) -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Yield one line for each row, then the rest of the positions."""
        columns = list(zip(*self.rows.values(), strict=True))
        widths = [2 + max(cell.cell_len for cell in column) for column in columns]
        label = 4 + max(map(len, self.rows))
        first = 0
        while first < len(columns):
            last = first + 1
            while (
                last < len(columns) and label + sum(widths[first : last + 1]) <= options.max_width
            ):
                last += 1
            for name, cells in self.rows.items():
                line = Text("", no_wrap=True).append(f"  {name}".ljust(label), "dim")
                for cell, width in zip(cells[first:last], widths[first:last], strict=True):
                    line.append_text(cell).append(" " * (width - cell.cell_len))
                line.rstrip()
                yield line
            first = last


def objectives(
    examples: Sequence[ObjectivePreview], reasons: Mapping[str, str]
) -> list[RenderableType]:
    """Show the inputs and targets of each objective, position by position, as coloured text."""
    from firth.objectives.registry import OBJECTIVES

    parts: list[RenderableType] = []
    previous = ""
    for example in examples:
        if example.objective != previous:
            row = OBJECTIVES[example.objective]
            about = f"{row.about}. {row.details} Source: {row.source}."
            parts.append(Text("\n").append(example.objective, "bold").append(f"  {about}"))
        previous = example.objective
        if example.variant:
            parts.append(Text(f"  {example.variant}", "italic"))
        parts += _grids(example)
        parts.append(Text("  " + " ".join([_count(example), example.note]).rstrip()))
    key = Text("  ").join(Text(KEY[role], style) for role, style in ROLES.items() if role in KEY)
    missing = [f"{name} cannot be shown: {reason}" for name, reason in reasons.items()]
    return [*parts, Text(""), Text("Colours: ").append_text(key), *missing]


def _grids(example: ObjectivePreview) -> list[TokenGrid]:
    """Show the input and its targets; with two stacks, those of the encoder and the decoder."""
    if not example.decoder:
        return [TokenGrid({**_inputs("input", example.reads, example.kind), **_targets(example)})]
    decoder = _inputs("decoder input", example.decoder, example.kind)
    return [
        TokenGrid(_inputs("encoder input", example.reads, example.kind)),
        TokenGrid({**decoder, **_targets(example)}),
    ]


def _inputs(label: str, words: Sequence[PreviewToken], kind: str) -> dict[str, list[Text]]:
    numbers = [Text(str(i), "dim") for i in range(len(words))]
    tokens = [Text(readable(kind, word.token), ROLES[word.role]) for word in words]
    return {"position": numbers, label: tokens}


def _targets(example: ObjectivePreview) -> dict[str, list[Text]]:
    """Return a row of targets for each prediction, empty where nothing is predicted."""
    rows = {}
    for what, targets in example.predicts.items():
        row = [Text("") for _ in example.decoder or example.reads]
        for position, target in zip(example.positions[what], targets, strict=True):
            row[position] = Text(readable(example.kind, target), "green")
        name = "target" if len(example.predicts) == 1 else f"target: {what}"
        rows[name] = row
    return rows


def _count(example: ObjectivePreview) -> str:
    """Say how many tokens or positions are predicted, and how long a prefix is."""
    positions = len(example.decoder or example.reads)
    tokens = sum(word.role != "special" for word in example.reads)
    hidden = {"masked", "boundary", "replaced"}
    counts = {
        f"{len(targets)} of {tokens} tokens (special tokens are never selected)"
        if what in hidden
        else f"{len(targets)} of {positions} positions"
        for what, targets in example.predicts.items()
        if what not in ("next sentence", "sentence order")
    }
    about = f"Prefix: the first {example.prefix} tokens. " if example.prefix else ""
    return f"{about}Predicted: {' and '.join(sorted(counts)) or 'nothing'}."


def objective_table() -> Table:
    """List all objectives with their architectures and papers."""
    from firth.objectives.registry import OBJECTIVES

    rows = [
        (name, row.about, ", ".join(row.architectures), row.source)
        for name, row in OBJECTIVES.items()
    ]
    columns = ("objective", "description", "architecture", "source")
    return new_table(*columns, rows=rows, left=range(4))
