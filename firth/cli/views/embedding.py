"""Terminal output of `embed` and `search`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.verbs import OutputLine

if TYPE_CHECKING:
    from firth.inference.embedding.embed_file import EmbeddedFile
    from firth.inference.embedding.semantic_search import SearchHit, SearchIndex

MAX_CHARACTERS = 400  # of a text in the results


def embedded(result: EmbeddedFile, limit: int) -> list[RenderableType]:
    """Summarize a file of vectors, and warn about its texts."""
    speed = (result.rows - result.resumed) / max(result.seconds, 1e-9)
    lines: list[RenderableType] = [
        f"{result.rows:,} vectors of dimension {result.dimension:,} are in {result.out} "
        f"({result.tokens:,} tokens; {speed:,.0f} texts/s)."
    ]
    if result.resumed:
        lines.append(f"The first {result.resumed:,} come from an interrupted run.")
    return [*lines, *result.notes, *_faults(result.faults, limit)]


def _faults(faults: Mapping[str, Mapping[str, int]], limit: int) -> list[Text]:
    """Warn about truncated and overflowing rows, one line for each kind."""
    messages = {
        "cut": f"longer than the {limit:,} tokens of the model: truncated",
        "not_finite": "not finite: the computation overflowed",
    }
    return [
        Text(
            f"{found['count']:,} {'row is' if found['count'] == 1 else 'rows are'} "
            f"{messages[fault]} (the first is row {found['first']:,}).",
            "bold red" if fault == "not_finite" else "yellow",
        )
        for fault, found in faults.items()
        if fault in messages
    ]


def hits(index: SearchIndex, hits: Sequence[SearchHit], limit: int) -> list[RenderableType]:
    """Show the results, best first; in a pipe, one line each: score, row, text."""
    notes: list[str | Text] = []
    if index.built:
        built = f"The index of {len(index):,} rows is in {index.path}; the next search uses it."
        notes = [built, *index.notes, *_faults(index.faults, limit)]
    if not sys.stdout.isatty():
        sys.stderr.writelines(f"{note}\n" for note in notes)
        return [OutputLine(f"{hit.score:.4f}\t{hit.row}\t{_printable(hit.text)}") for hit in hits]
    table = Table()
    for column in ("score", "row"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for hit in hits:
        text = _printable(hit.text[: MAX_CHARACTERS + 1])
        text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
        table.add_row(f"{hit.score:.3f}", f"{hit.row:,}", text)
    return [table, *notes]


def _printable(text: str) -> str:
    """Replace control characters and line breaks by spaces."""
    return "".join(c if c.isprintable() else " " for c in text)
