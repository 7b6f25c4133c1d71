"""Terminal output of reports on runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from firth.cli.terminal import heading
from firth.cli.views.figures import figures
from firth.jobs.run_report.report import RunReport
from firth.utils.figures import DataTable, Paragraph


def reported(found: RunReport, out: Path | None) -> Iterator[RenderableType]:
    """Show a summary, or the page that was written; warnings in both cases."""
    if out is None:
        sections: dict[str, Iterable[RenderableType]] = {
            "Runs": figures([found.overview()]),
            "Lineage": _tree(found.lineage()),
            "Metrics": figures(found.metric_figures()),
            "Settings": figures(found.settings_figures(many=True)),
        }
        for title, shown in sections.items():
            yield heading(title)
            yield from shown
    yield from figures(Paragraph(text, warning=True) for text in found.warnings)
    if out is None:
        yield "--out page.html writes a page, with loss curves, samples and all settings."
    else:
        yield f"Wrote {out} ({Path(out).stat().st_size / 1e6:.1f} MB): open it in a browser."


def _tree(lineage: DataTable) -> Iterator[Text]:
    """Show a lineage as lines, since paths need more room than a column of a terminal has."""
    for number, (name, path, *details, state) in enumerate(lineage.rows):
        is_run = name[0] not in "├│└\N{NO-BREAK SPACE}"
        line = Text("\n" if is_run and number else "").append(name, "bold" if is_run else "")
        line.append(f"  {path}  ").append(" · ".join(filter(None, details)), "dim")
        bad = (number, len(details) + 2) in lineage.marked
        yield line.append(f"  {state}" if state else "", "bold yellow" if bad else "dim")
