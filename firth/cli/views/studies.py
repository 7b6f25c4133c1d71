"""Terminal output of studies: the cells while they run, the results, the list of studies."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from firth.cli.terminal import heading, new_table
from firth.cli.views.figures import figures
from firth.study.engine.settings import Setting, settings_of
from firth.study.engine.study_result import PAGE, shown_setting

if TYPE_CHECKING:
    from firth.study.engine.grid import CellProgress, OnResult
    from firth.study.engine.settings import Setting, settings_of
    from firth.study.engine.study import Study
from firth.study.engine.study_result import StudyResult

SHOWN = 12  # cells in the live table


@contextmanager
def live_cells() -> Iterator[OnResult]:
    """Show a live table of the last cells on stderr; a line for each if it is no terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: print(_line(progress), file=sys.stderr, flush=True)
        return
    last: deque[CellProgress] = deque(maxlen=SHOWN)
    begun = time.monotonic()
    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def show(progress: CellProgress) -> None:
            last.append(progress)
            live.update(_table(last, time.monotonic() - begun))

        yield show


def _line(progress: CellProgress) -> str:
    cell, result = progress.cell, progress.result
    time_taken = "cached" if result.cached else f"{result.seconds:.1f} s"
    status = f"failed: {result.error}" if result.error else result.headline
    return f"{progress.done}/{progress.total}  {cell.name}  {status}  {time_taken}"


def _table(last: Sequence[CellProgress], seconds: float) -> RenderableType:
    table = new_table("cell", "score", "seconds")
    for progress in last:
        result = progress.result
        score = Text("failed: " + result.error, "red") if result.error else Text(result.headline)
        table.add_row(
            progress.cell.name, score, "cached" if result.cached else f"{result.seconds:.1f}"
        )
    newest = last[-1]
    left = seconds / newest.done * (newest.total - newest.done)
    status = f"{newest.done} of {newest.total} cells, {seconds:.0f} s, about {left:.0f} s left"
    return Group(table, Text(status, "dim"))


def result(found: StudyResult) -> Iterator[RenderableType]:
    """Show the figures, then the verdict and where the page is."""
    yield heading(found.study.question)
    yield from figures(found.figures())
    yield f"Wrote {found.out / PAGE}: open it in a browser."


def studies(found: Sequence[Study]) -> Iterator[RenderableType]:
    """List the studies with their questions; of a single one, the settings of each budget."""
    if len(found) > 1:
        rows = [(study.name, study.question) for study in found]
        yield new_table("study", "question", rows=rows, left=(0, 1))
        yield "firth study NAME lists its settings; firth study NAME --out DIR runs it."
        return
    (study,) = found
    yield heading(study.question)
    table = [(one.name, *_shown(one), one.meaning) for one in settings_of(study)]
    yield new_table("setting", "small", "medium", "large", "meaning", rows=table, left=(0, 4))
    yield f"firth study {study.name} --set NAME=VALUE --out DIR changes one and runs the study."


def _shown(setting: Setting) -> list[str]:
    """Format the value of each budget; medium and large only where they differ from small."""
    small, *others = setting.values.values()
    return [shown_setting(small), *("" if v == small else shown_setting(v) for v in others)]


def study_values(study: Study) -> dict[str, Any]:
    """Convert a study to plain JSON values."""
    settings = {one.name: {"meaning": one.meaning, **one.values} for one in settings_of(study)}
    return {"study": study.name, "question": study.question, "settings": settings}
