"""How vectors and what is found by them look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from firth.inference.embed_file import Embedded
    from firth.inference.search import Hit, Index

SHOWN = 400  # characters of a text that was found


def embedded(made: Embedded, limit: int) -> list[RenderableType]:
    """A file of vectors, and what was not as it should be in the texts."""
    speed = (made.rows - made.resumed) / max(made.seconds, 1e-9)
    lines: list[RenderableType] = [
        f"{made.rows:,} vectors of {made.width:,} numbers are in {made.out} "
        f"({made.tokens:,} tokens; {speed:,.0f} texts a second)."
    ]
    if made.resumed:
        lines.append(f"The first {made.resumed:,} were there from a run that was interrupted.")
    return lines + _faults(made.faults, limit)


def _faults(faults: Mapping[str, Mapping[str, int]], limit: int) -> list[RenderableType]:
    """One line for each kind of row that is not as it should be."""
    said = {
        "empty": "empty: the vector of a text without words",
        "repaired": "not UTF-8: bytes were replaced",
        "cut": f"longer than the {limit:,} tokens the model sees: the rest was left out",
        "not_finite": "more than the model can compute: the vector is not finite",
    }
    return [
        Text(
            f"{found['count']:,} {'row is' if found['count'] == 1 else 'rows are'} {said[fault]} "
            f"(the first is row {found['first']:,}).",
            "bold red" if fault == "not_finite" else "yellow",
        )
        for fault, found in faults.items()
    ]


def hits(index: Index, hits: Sequence[Hit], limit: int) -> list[RenderableType]:
    """What was found, best first."""
    table = Table()
    for column in ("score", "row"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for hit in hits:
        text = "".join(c if c.isprintable() else " " for c in hit.text[: SHOWN + 1])
        text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        table.add_row(f"{hit.score:.3f}", f"{hit.row:,}", text)
    if not index.built:
        return [table]
    told = f"The {len(index):,} texts are indexed in {index.path}; the next search is quicker."
    return [table, told, *_faults(index.faults or {}, limit)]
