"""Terminal output of inspections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from firth.cli.terminal import heading
from firth.cli.views.figures import figures
from firth.inspection.inspection import Inspection


def inspected(found: Inspection, out: Path | None, png: Path | None) -> Iterator[RenderableType]:
    """Show all sections, or the files that were written."""
    if out is None and png is None:
        for title, lead, shown in found.titled():
            yield heading(title)
            yield Text(lead, "dim")
            yield from figures(shown)
        yield "--out page.html writes all of it as an interactive page."
    if out is not None:
        yield f"Wrote {out} ({Path(out).stat().st_size / 1e6:.1f} MB): open it in a browser."
    if png is not None:
        count = len(list(Path(png).glob("*.png")))
        yield f"Wrote {count} {'image' if count == 1 else 'images'} to {png}."
