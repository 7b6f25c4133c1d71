"""What people see of a prompted model in a terminal: answers, figures, the prompt itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.commands.task_views import figures
from firth.commands.terminal import COLOURS, new_table

if TYPE_CHECKING:  # these need torch
    from firth.prompting import Prompted


def prompted(made: Prompted, *, show: bool, out: Path | None) -> list[RenderableType]:
    """What a model answered, and what that is worth."""
    parts: list[RenderableType] = [_prompt(made)] if show else []
    if made.answers:
        return [*parts, *(_answer(answer) for answer in made.answers), *made.notes]
    if len(made.draws) > 1:
        parts.append(_draws(made))
    if made.figures:
        parts.append(figures(made.figures))
    else:
        parts.append("No example says what is right, so there is nothing to compare with.")
    return [*parts, *_said(made, out), *made.notes]


def _prompt(made: Prompted) -> Text:
    """The first prompt, and where its answer belongs."""
    line = Text(made.prompt, COLOURS[0])
    return line.append("" if "[MASK]" in made.prompt else " …", "dim").append("\n")


def _answer(answer: Mapping[str, Any]) -> RenderableType:
    """One answer, with how likely each was where they were scored."""
    if "source" in answer:
        line = Text(f"{answer['source']} → ", "dim")
        return line.append(answer["text"] or "(nothing)", f"not dim bold {COLOURS[0]}")
    shown = Table.grid(padding=(0, 2))
    shares = answer["scores"]
    if "choices" in answer:
        shares = dict(zip(answer["choices"], shares, strict=True))
    best = answer.get("label", answer.get("text"))
    for name, share in shares.items():
        shown.add_row(f"{share:.1%}", Text(name), style="bold" if name == best else "dim")
    return shown


def _draws(made: Prompted) -> Table:
    """The figures of each choice of examples, and their mean."""
    names = list(made.figures)
    shown = new_table("draw", *[part for name in names for part in (name, "95 % interval")])
    for number, draw in enumerate(made.draws, 1):
        own = [draw.figures[name] for name in names]
        cells = [(f"{f.value:.4f}", f.interval) for f in own]
        shown.add_row(str(number), *[cell for pair in cells for cell in pair])
    over = [(f"{made.figures[n].value:.4f}", f"± {made.deviations[n]:.4f}") for n in names]
    shown.add_row("mean", *[cell for pair in over for cell in pair], style="bold")
    return shown


def _said(made: Prompted, out: Path | None) -> list[str]:
    """How the figures came about."""
    shots = {0: "no examples", 1: "one example"}.get(made.shots, f"{made.shots} examples")
    asked = f"{made.n:,} questions, each" if made.n > 1 else "One question,"
    lines = [f"{asked} behind {shots}."]
    if made.guess is not None:
        lines.append(f"Without reading them, {made.guess:.1%} could be right.")
    if made.shots and len(made.draws) == 1 and made.draws[0].shown:
        lines.append("Other examples would give other figures: --draws 5 says how far apart.")
    if out is not None:
        lines.append(f"The answers are in {out}.")
    return lines
