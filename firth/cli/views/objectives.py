"""Terminal output of `objectives`: inputs and targets as coloured text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import new_table

if TYPE_CHECKING:
    from firth.objectives.preview import ObjectivePreview

ROLES = {
    "text": "",
    "special": "dim",
    "hidden": "bold white on red",
    "changed": "black on magenta",
    "kept": "black on yellow",
    "prefix": "underline",
}


def objectives(
    examples: Sequence[ObjectivePreview], reasons: Mapping[str, str]
) -> list[RenderableType]:
    """Show the inputs and targets of each objective as coloured text."""
    table = Table(show_lines=True)
    for column in ("objective", "input", "targets"):
        table.add_column(column, overflow="fold", no_wrap=column == "objective")
    for example in examples:
        inputs = Text()
        for word in example.reads:
            inputs.append(word.token, ROLES[word.role]).append(" ")
        targets = Text()
        for what, words in example.predicts.items():
            targets.append(f"{what}: ", "dim").append(" ".join(words) + "\n", "green")
        targets.rstrip()
        table.add_row(example.objective, inputs, targets)
    key = Text("  ").join(Text(role, style) for role, style in ROLES.items() if role != "text")
    missing = [f"{name} cannot be shown: {reason}" for name, reason in reasons.items()]
    return [table, key, *missing]


def objective_table() -> Table:
    """List all objectives with their architectures and papers."""
    from firth.objectives.registry import OBJECTIVES

    rows = [
        (name, row.about, ", ".join(row.architectures), row.source)
        for name, row in OBJECTIVES.items()
    ]
    columns = ("objective", "description", "architecture", "source")
    return new_table(*columns, rows=rows, left=range(4))
