"""Terminal output of `prompt`: answers, metrics, the prompt itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.cli.views.tasks import metrics_table

if TYPE_CHECKING:  # these need torch
    from firth.jobs.prompting import PromptResult


def prompted(result: PromptResult, *, show: bool, out: Path | None) -> list[RenderableType]:
    """Show the answers to texts, or the metrics on a file."""
    parts: list[RenderableType] = [_prompt(result)] if show else []
    if result.answers:
        return [*parts, *(_answer(answer) for answer in result.answers), *result.notes]
    if len(result.demonstration_sets) > 1:
        parts.append(_draws(result))
    if result.metrics:
        parts.append(metrics_table(result.metrics))
    else:
        parts.append("The examples have no labels, so there are no metrics.")
    return [*parts, *_summary(result, out), *result.notes]


def _prompt(result: PromptResult) -> Text:
    """Show the first prompt, with a mark where the answer goes."""
    line = Text(result.prompt, COLOURS[0])
    return line.append("" if "[MASK]" in result.prompt else " …", "dim").append("\n")


def _answer(answer: Mapping[str, Any]) -> RenderableType:
    """Show one answer; for scored labels, the probability of each."""
    if "source" in answer:
        line = Text(f"{answer['source']} → ", "dim")
        return line.append(answer["text"] or "(nothing)", f"not dim bold {COLOURS[0]}")
    table = Table.grid(padding=(0, 2))
    probabilities = answer["scores"]
    if "choices" in answer:
        probabilities = dict(zip(answer["choices"], probabilities, strict=True))
    best = answer.get("label", answer.get("text"))
    for name, probability in probabilities.items():
        table.add_row(f"{probability:.1%}", Text(name), style="bold" if name == best else "dim")
    return table


def _draws(result: PromptResult) -> Table:
    """Show the metrics of each demonstration set, and their mean."""
    columns = [part for name in result.metrics for part in (name, "95 % interval")]
    rows = [
        [str(number)]
        + [part for m in draw.metrics.values() for part in (f"{m.value:.4f}", m.interval)]
        for number, draw in enumerate(result.demonstration_sets, 1)
    ]
    table = new_table("draw", *columns, rows=rows)
    mean = [
        (f"{m.value:.4f}", f"± {result.deviations[name]:.4f}") for name, m in result.metrics.items()
    ]
    table.add_row("mean", *[part for pair in mean for part in pair], style="bold")
    return table


def _summary(result: PromptResult, out: Path | None) -> list[str]:
    """Say how many questions and demonstrations there were, and where the answers are."""
    shots = {0: "zero demonstrations", 1: "one demonstration"}.get(
        result.shots, f"{result.shots} demonstrations"
    )
    questions = f"{result.n:,} questions" if result.n > 1 else "1 question"
    lines = [f"{questions} with {shots}."]
    if result.guess is not None:
        lines.append(f"Always predicting the most frequent answer gives {result.guess:.1%}.")
    if result.shots and len(result.demonstration_sets) == 1 and result.demonstration_sets[0].shown:
        lines.append("Other demonstrations give other metrics: --draws 5 reports their spread.")
    if out is not None:
        lines.append(f"The answers are in {out}.")
    return lines
