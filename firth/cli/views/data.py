"""Terminal output of `stories`, `tokenizer train`, `prepare` and `pretrain`: counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from firth.cli.terminal import new_table

if TYPE_CHECKING:
    from firth.data.corpus import CorpusReport
    from firth.data.stories import Summary
    from firth.jobs.preparation import PrepareResult
    from firth.jobs.pretraining import PretrainResult


def report(report: CorpusReport) -> Table:
    """Count documents and words, and what cleaning removed or repaired."""
    table = new_table("", "count")
    rows = [("documents", report.documents), ("words", report.words)]
    rows.append(("characters", report.characters))
    rows += [(f"removed: {why}", count) for why, count in sorted(report.removed.items())]
    rows += sorted(report.repaired.items())
    for what, count in rows:
        table.add_row(what, f"{count:,}")
    return table


def prepared(prepared: PrepareResult) -> list[RenderableType]:
    """Show the cleaning report and the size of each split."""
    table = new_table("split", "documents", "sentences", "tokens", "shards")
    for split, totals in prepared.splits.items():
        columns = ("documents", "sentences", "tokens", "shards")
        table.add_row(split, *(f"{totals[column]:,}" for column in columns))
    lines: list[RenderableType] = [report(prepared.report), table]
    if prepared.resumed:
        lines.append("Continued an interrupted run.")
    if "valid" not in prepared.splits:
        lines.append("There is no validation split.")
    return [*lines, f"The shards are in {prepared.path}."]


def stories(summary: Summary) -> list[RenderableType]:
    """Count the stories, and the examples of each task."""
    counts_table = new_table("", "count")
    for what in ("stories", "words", "vocabulary"):
        counts_table.add_row(what, f"{getattr(summary, what):,}")
    counts_table.add_row("long test sentences also in train", f"{summary.repeated:.1%}")
    table = new_table("task", "train", "dev", "test")
    counts = list(summary.examples.items())
    for parts in zip(counts[::3], counts[1::3], counts[2::3], strict=True):
        table.add_row(parts[0][0].split("/")[0], *(f"{count:,}" for _, count in parts))
    return [counts_table, table, f"The stories are in {summary.out}."]


def pretrained(result: PretrainResult) -> list[RenderableType]:
    """Summarize a pre-training run."""
    table = new_table("", "")
    loss = "none" if result.loss is None else f"{result.loss:.3f}"
    rows = {
        "parameters": f"{result.model.num_parameters:,}",
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens:,}",
        "minutes": f"{result.seconds / 60:.1f}",
        "validation loss": loss,
        "format": result.family,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    path = result.path
    return [table, f"The model is in {path}, its loss curve in {path / 'loss.png'}."]
