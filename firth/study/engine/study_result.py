"""The result of a study as JSON values, `results.jsonl`, an image and a self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firth.study.claim_table import claims_about
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellResult
from firth.study.engine.study import Finding, Study, StudyAnalysis, StudyInputs
from firth.utils.figure_images import image_figures, write_image
from firth.utils.figures import (
    DataTable,
    Figure,
    KeyNumber,
    KeyNumbers,
    MarkedText,
    Paragraph,
    Piece,
)
from firth.utils.files import atomic_file
from firth.utils.html_page import Page, Section, write_page
from firth.utils.notebook import HtmlRepr

PAGE, ROWS, IMAGE = "index.html", "results.jsonl", "figure.png"
VERDICTS = {True: "holds", False: "does not hold", None: "cannot decide"}
MARKS = {True: "right", False: "wrong", None: "b"}  # colours


@dataclass(frozen=True, kw_only=True)
class StudyResult(HtmlRepr):
    """What a study found, and the cells that it ran."""

    study: Study
    out: Path
    settings: Any
    inputs: StudyInputs
    budget: str
    seeds: tuple[int, ...]
    analysis: StudyAnalysis
    cells: Mapping[Cell, CellResult]
    seconds: float
    command: str
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Finding:
        """The first finding."""
        return self.analysis.findings[0]

    @property
    def failures(self) -> list[dict[str, str]]:
        """The cells that failed, with the reason; two cells may have the same name."""
        return [
            {"cell": cell.name, "reason": found.error}
            for cell, found in self.cells.items()
            if found.error
        ]

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {
            "study": self.study.name,
            "rows": list(self.analysis.rows),
            "verdict": self.verdict.values(),
            "findings": [finding.values() for finding in self.analysis.findings],
            "budget": self.budget,
            "seeds": list(self.seeds),
            "settings": asdict(self.settings),
            "failures": self.failures,
            "notes": list(self.notes),
            "out": str(self.out),
            "seconds": round(self.seconds, 1),
        }

    def __repr__(self) -> str:
        return f"StudyResult({self.study.name}: {self.verdict.text})"

    def save(self) -> None:
        """Write the page, the rows and the image."""
        with atomic_file(self.out / ROWS) as file:
            for row in self.analysis.rows:
                file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        for figure in image_figures(self.analysis.figures)[:1]:
            write_image(figure, self.out / IMAGE)
        write_page(self.out / PAGE, self.page())

    def figures(self) -> list[Figure]:
        """Return the verdict, the other findings, the figures, notes and failures."""
        return [*self._findings(), *self.analysis.figures, *self._notes()]

    def page(self) -> Page:
        """Return the page."""
        footer = f"{self.command} · {self.seconds:.0f} seconds"
        return Page(f"Study: {self.study.name}", self.study.question, self.sections(), footer)

    def sections(self) -> list[Section]:
        """Return the sections of the page."""
        return [
            Section("Verdict", figures=self._findings()),
            Section("Results", figures=[*self.analysis.figures, *self._notes()]),
            Section(
                "Settings",
                figures=[self._settings(), self._cells()],
                commands=[self.command],
                commands_title="Repeat",
            ),
        ]

    def _findings(self) -> list[Figure]:
        """Show each finding with its verdict, and what the lectures say."""
        shown = list[Figure]()
        for finding in self.analysis.findings:
            verdict = Piece(VERDICTS[finding.holds], MARKS[finding.holds])
            claims = claims_about(self.study.name, finding.name)
            said = " · ".join(f"{claim.source}: “{claim.claim}”" for claim in claims)
            shown.append(MarkedText("", (verdict, Piece(f" {finding.text}")), caption=said))
        return shown

    def _notes(self) -> list[Figure]:
        failed = tuple((one["cell"], one["reason"]) for one in self.failures)
        table = DataTable("Cells that failed", ("cell", "reason"), failed, texts=True)
        return [*map(Paragraph, self.notes), *([table] if failed else [])]

    def _settings(self) -> DataTable:
        rows = [(name, shown_setting(value)) for name, value in asdict(self.settings).items()]
        given = ((name, shown_setting(getattr(self.inputs, name))) for name in self.inputs.given())
        rows += [("budget", self.budget), ("seeds", shown_setting(self.seeds)), *given]
        return DataTable("", ("setting", "value"), tuple(rows), texts=True)

    def _cells(self) -> KeyNumbers:
        ran = [found for found in self.cells.values() if not found.cached]
        seconds = sum(found.seconds for found in self.cells.values())
        return KeyNumbers(
            (
                KeyNumber(str(len(self.cells)), "cells in all"),
                KeyNumber(str(len(self.cells) - len(ran)), "that had finished before"),
                KeyNumber(f"{seconds:.0f} s", "of computing in all cells"),
            )
        )


def shown_setting(value: Any) -> str:
    """Format a setting.

    >>> shown_setting((10, 100)), shown_setting(1e-3), shown_setting(10_000)
    ('10, 100', '0.001', '10,000')
    """
    if isinstance(value, list | tuple):
        return ", ".join(map(shown_setting, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown_setting(item)}" for name, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
