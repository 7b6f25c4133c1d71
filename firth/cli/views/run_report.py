"""Terminal output of reports on runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType

from firth.cli.terminal import heading
from firth.cli.views.figures import figures
from firth.jobs.run_report.report import RunReport
from firth.utils.figures import Figure, Paragraph


def reported(found: RunReport, out: Path | None) -> Iterator[RenderableType]:
    """Show a summary, or the page that was written; warnings in both cases."""
    if out is None:
        sections: dict[str, Sequence[Figure]] = {
            "Runs": [found.overview()],
            "Lineage": found.lineage_figures(),
            "Metrics": found.metric_figures(),
            "Settings": found.settings_figures(many=True),
        }
        for title, shown in sections.items():
            yield heading(title)
            yield from figures(shown)
    yield from figures(Paragraph(text, warning=True) for text in found.warnings)
    if out is None:
        yield "--out page.html writes a page, with loss curves, samples and all settings."
    else:
        size = Path(out).stat().st_size / 1e6
        yield f"Wrote {out} ({size:.1f} MB, {len(found.records)} runs): open it in a browser."
