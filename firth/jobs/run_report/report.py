"""The report on runs, as a page, as figures for a terminal, and as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from firth.jobs.run_report.lineage import Origin, lineage, lineage_table, problems
from firth.jobs.run_report.logged_samples import sample_figures, sample_values
from firth.jobs.run_report.loss_curves import curve_values, loss_figures
from firth.jobs.run_report.run_record import RunRecord
from firth.jobs.run_report.run_results import (
    RunResults,
    cost_table,
    metric_figures,
    run_results,
)
from firth.jobs.run_report.settings_table import SettingsTable, settings, settings_table
from firth.utils.errors import storage_errors
from firth.utils.figures import DataTable, Figure, Paragraph
from firth.utils.html_page import Page, Section, write_page
from firth.utils.notebook import HtmlRepr
from firth.utils.outputs import check_output

LEADS = {
    "Runs": "What was trained, when, and whether it finished.",
    "Metrics": "Validation of pre-training runs, results of fine-tuning runs, and their cost.",
    "Loss": "Training losses are means over the steps since the line before.",
    "Settings": "Highlighted values differ from those of the first run.",
    "Lineage": "What each run was made from, compared with what is on disk now.",
    "Samples": "Predictions for the same validation texts during training: the prediction in «», "
    "the hidden words in [].",
}
MOST_COLUMNS = 5  # runs side by side in a terminal


@dataclass(frozen=True, kw_only=True)
class RunReport(HtmlRepr):
    """What `firth.report` found; `save` writes the page."""

    records: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()  # about what was left out

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """The lineage of each run."""
        return tuple(map(lineage, self.records))

    @cached_property
    def results(self) -> tuple[RunResults, ...]:
        """The metrics and the cost of each run."""
        return tuple(map(run_results, self.records))

    @property
    def kinds(self) -> dict[str, list[RunRecord]]:
        """The runs of each kind, which have the same settings."""
        return _grouped(self.records, lambda record: record.kind)

    @property
    def groups(self) -> dict[str, list[RunRecord]]:
        """The runs of each kind and task, which have the same losses and metrics."""
        return _grouped(self.records, lambda record: record.group)

    @property
    def settings(self) -> dict[str, SettingsTable]:
        """The settings of the runs of each kind."""
        return {kind: settings_table(records) for kind, records in self.kinds.items()}

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the runs, their files or their parents."""
        found = [*self.notes, *(note for record in self.records for note in record.notes)]
        for record, origin in zip(self.records, self.origins, strict=True):
            found += problems(record.name, origin)
        return found

    def values(self) -> dict[str, Any]:
        """Return JSON values: everything about each run, and which settings differ."""
        return {
            "runs": [
                {
                    "name": record.name,
                    "path": str(record.path),
                    "kind": record.kind,
                    "method": record.method,
                    "status": record.status,
                    "progress": record.progress,
                    "started": record.started,
                    "command": record.command,
                    **results.values(),
                    "settings": settings(record),
                    "lineage": origin.values(),
                    "losses": curve_values(record),
                    "samples": sample_values(record),
                    "notes": _run_notes(record),
                }
                for record, results, origin in zip(
                    self.records, self.results, self.origins, strict=True
                )
            ],
            "different_settings": {
                kind: [name for name, _ in table.different] for kind, table in self.settings.items()
            },
            "notes": self.warnings,
        }

    # ---- figures ------------------------------------------------------------------------------

    def overview(self) -> DataTable:
        """List the runs."""
        rows = tuple(
            (record.name, record.kind, record.method, record.state, record.started)
            for record in self.records
        )
        marked = frozenset(
            (number, 3) for number, one in enumerate(self.records) if one.status != "finished"
        )
        columns = ("run", "kind", "trained", "status", "started (UTC)")
        return DataTable("", columns, rows, texts=True, marked=marked)

    def metric_figures(self) -> list[Figure]:
        """Show the metrics of each group of runs, and the cost of all."""
        by_name = dict(zip((one.name for one in self.records), self.results, strict=True))
        figures: list[Figure] = []
        for records in self.groups.values():
            figures += metric_figures(records, [by_name[record.name] for record in records])
        return [*figures, cost_table(self.records, self.results)]

    def lineage(self) -> DataTable:
        """Show the tree of everything that the runs were made from."""
        return lineage_table(self.origins)

    def settings_figures(self, *, many: bool = False) -> list[Figure]:
        """Show the settings of each kind of run; with `many`, each value with its runs."""
        figures: list[Figure] = []
        for kind, table in self.settings.items():
            tables = list(table.figures(kind.capitalize()))
            if many and table.different and len(table.names) > MOST_COLUMNS:
                title, rows = tables[0].title, table.by_value()
                tables[0] = DataTable(title, ("setting", "values"), rows, texts=True)
            figures += tables
        return figures

    def _run_figures(self) -> list[Figure]:
        notes = [(record.name, note) for record in self.records for note in _run_notes(record)]
        table = DataTable("Notes of the runs", ("run", "note"), tuple(notes), texts=True)
        warnings = [Paragraph(text, warning=True) for text in self.warnings]
        return [self.overview(), *warnings, *([table] if notes else [])]

    def _loss_figures(self) -> list[Figure]:
        return [figure for records in self.groups.values() for figure in loss_figures(records)]

    # ---- page ---------------------------------------------------------------------------------

    def page(self) -> Page:
        """Return the page of all sections."""
        parts: Mapping[str, Callable[[], Sequence[Figure]]] = {
            "Runs": self._run_figures,
            "Metrics": self.metric_figures,
            "Loss": self._loss_figures,
            "Settings": self.settings_figures,
            "Lineage": lambda: [self.lineage()],
            "Samples": lambda: sample_figures(self.records),
        }
        shown = ((title, figures()) for title, figures in parts.items())
        sections = [
            Section(
                title,
                LEADS[title],
                figures,
                self._commands() if title == "Runs" else (),
                "Commands of these runs",
            )
            for title, figures in shown
            if figures
        ]
        count = len(self.records)
        title = self.records[0].name if count == 1 else f"{count} runs"
        lead = " · ".join(f"{len(runs)} {kind}" for kind, runs in self.kinds.items())
        return Page(f"Report: {title}", lead, sections, "Made by firth report.", wide=True)

    def _commands(self) -> list[str]:
        return list(dict.fromkeys(record.command for record in self.records if record.command))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the page: one HTML file that needs no other file and no network."""
        check_output(path, overwrite)
        with storage_errors(Path(path)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_page(Path(path), self.page())

    def __repr__(self) -> str:
        kinds = ", ".join(f"{len(runs)} {kind}" for kind, runs in self.kinds.items())
        return f"RunReport({kinds}: {', '.join(record.name for record in self.records)})"


def _grouped(
    records: Sequence[RunRecord], name: Callable[[RunRecord], str]
) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        found.setdefault(name(record), []).append(record)
    return found


def _run_notes(record: RunRecord) -> list[str]:
    return [
        str(line["note"]) for line in record.log if line.get("kind") == "note" and "note" in line
    ]
