"""Progress bars, the live line of a training run, and tables."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from firth.training.log import describe_step, describe_validation, run_name
from firth.utils.torchrun import launched_rank

if TYPE_CHECKING:
    from firth.tokenizers import counting

COLOURS = ("black on #b8d8e8", "black on #f3d9a4", "black on #c9e4b4", "black on #e6c4dd")


@contextmanager
def progress(*, stages: bool = False, transient: bool = False) -> Iterator[counting.Progress]:
    """Show a progress bar on stderr for each stage; print nothing if stderr is not a terminal.

    With `stages`, the name of each stage is printed there when it begins; `transient` bars
    disappear at the end.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    live = sys.stderr.isatty() and launched_rank() == 0
    columns_shown = (*columns, *times)
    with Progress(*columns_shown, console=console, disable=not live, transient=transient) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage)
                if stages and not live:
                    print(stage, file=sys.stderr, flush=True)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield show


@contextmanager
def training() -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """Show loss, speed and time left of a training run on stderr; notes and validations above.

    If stderr is not a terminal, print one line for each note and validation.
    """
    if launched_rank() != 0:  # under torchrun, only rank 0 prints
        yield lambda kind, metrics: None
        return
    if not sys.stderr.isatty():
        yield _plain_training()
        return
    bar = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn())
    rest = (TextColumn("{task.fields[metrics]}"), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*bar, *rest, console=console) as bars:
        task = bars.add_task("training", total=1.0, metrics="")

        def show(kind: str, metrics: Mapping[str, Any]) -> None:
            if kind == "step":
                done, pace = metrics["progress"], describe_step(metrics)
                name = metrics.get("run", "training")
                bars.update(task, description=name, completed=done, metrics=pace)
            elif kind == "progress":  # of a model that is fitted without steps
                done = metrics["done"] / max(1, metrics["total"])
                bars.update(task, description=metrics["what"], completed=done)
            elif kind == "validating":
                bars.update(task, description="validating")
            elif kind == "note":
                bars.console.print(Text(run_name(metrics) + metrics["note"], "yellow"))
            elif kind == "validation":
                bars.console.print(_validation(metrics))

        yield show


def _plain_training() -> Callable[[str, Mapping[str, Any]], None]:
    """Print notes and validations of a run line by line, for a log file."""
    begun, per_step = time.monotonic(), 0.0  # fraction of the run per step

    def show(kind: str, metrics: Mapping[str, Any]) -> None:
        nonlocal per_step
        if kind == "step":
            per_step = metrics["progress"] / max(1, metrics["step"])
        elif kind == "note":
            print(run_name(metrics) + metrics["note"], file=sys.stderr, flush=True)
        elif kind == "validation":
            minutes = (time.monotonic() - begun) / 60
            done = min(1.0, metrics["step"] * per_step)  # not every step is reported
            done = metrics.get("progress", done)
            losses = describe_validation(metrics)
            line = f"{run_name(metrics)}{done:4.0%} after {minutes:.1f} min  {losses}"
            print(line, file=sys.stderr, flush=True)

    return show


def _validation(metrics: Mapping[str, Any]) -> Text:
    """Format the metrics and samples of a validation."""
    text = Text(run_name(metrics) + describe_validation(metrics), "bold")
    for sample in metrics.get("samples", ()):
        text.append(f"\n  {sample}", "dim")
    return text


def heading(text: str) -> Text:
    return Text(f"\n{text}\n", "bold")


def new_table(
    *columns: str,
    rows: Iterable[Sequence[RenderableType]] = (),
    left: Container[int] = (0,),
    plain: bool = False,
) -> Table:
    """Make a table; the columns with the numbers `left` are aligned left, others right."""
    table = Table(box=box.SIMPLE_HEAD if plain else box.HEAVY_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i in left else "right")
    for row in rows:
        table.add_row(*row)
    return table
