"""What people see of tasks in a terminal: tables of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import RenderableType
from rich.table import Table

from firth.commands.terminal import new_table
from firth.runs import learned_from

if TYPE_CHECKING:  # these need torch
    from firth.evaluation import Evaluation
    from firth.finetuning import Tuned
    from firth.metrics.bootstrap import Figure
    from firth.suites import Suite
    from firth.sweep import Sweep

MOST_NAMED = 12  # rows of a suite that are named in a sentence
KINDS = {"type": "set", "term": "phenomenon"}  # of minimal pairs
UNITS = {"minimal-pairs": "pairs", "last-word": "texts"}


def tasks(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every task with its files, metric and recipes."""
    found = new_table("task", "what it is", "files", "chosen by", "recipes")
    found.box = box.SIMPLE_HEAD
    for column in found.columns:
        column.justify = "left"
    for row in rows:
        recipes = ", ".join(row["recipes"]) if row["taught"] else "(only measured)"
        found.add_row(row["task"], row["about"], row["files"], row["metric"], recipes)
    return found


def figures(found: Mapping[str, Figure]) -> Table:
    """Figures with their intervals."""
    shown = new_table("figure", "value", "95 % interval")
    for name, figure in found.items():
        value = f"{figure.value:.4f}{_error(figure)}"
        shown.add_row(name, value, figure.interval)
    return shown


def tuned(made: Tuned) -> list[RenderableType]:
    """A finished run."""
    values = made.values()
    about = (
        f"{values['trained']:,} of {values['parameters']:,} parameters were trained "
        f"({values['share']:.2%}) by {made.job.strategy}, in {made.seconds:.0f} s and "
        f"{made.steps:,} steps, with at most {made.memory / 2**20:,.0f} MiB."
    )
    return [
        figures(made.figures),
        f"Learned from {learned_from(values)}; the figures are of {values['n']:,} others.",
        about,
        f"The model is in {made.path} ({made.family}); `firth predict {made.path} --data FILE` "
        "asks it.",
    ]


def evaluation(found: Evaluation) -> list[RenderableType]:
    """What a model's answers are worth."""
    tables: list[RenderableType] = []
    for kind, rows in {"type": found.parts, **found.groups}.items():
        if len(rows) > (found.task != "tag"):
            tables.append(_parts(kind if found.task == "tag" else KINDS.get(kind, kind), rows))
    units = found.details.get("units") or UNITS.get(found.task, "examples")
    units = units.removesuffix("s") if found.n == 1 else units
    said = f"{found.n:,} {units} in {found.seconds:.1f} s."
    return [figures(found.figures), *tables, *_details(found.details), said, *found.notes]


def _parts(kind: str, rows: Mapping[str, Mapping[str, Figure]]) -> Table:
    """The same figures of several parts, each with its error or the interval of the last."""
    names = list(next(iter(rows.values())))
    with_errors = any(hasattr(figure, "error") for row in rows.values() for figure in row.values())
    shown = new_table(kind, *names, *(() if with_errors else ("95 % interval",)))
    for part, row in rows.items():
        cells = [f"{row[name].value:.4f}{_error(row[name])}" for name in names]
        last = row[names[-1]]
        interval = () if with_errors else (last.interval,)
        shown.add_row(part, *cells, *interval)
    return shown


def _error(figure: Figure) -> str:
    error = getattr(figure, "error", None)
    return "" if error is None else f" ± {error:.4f}"


def _details(details: Mapping[str, Any]) -> list[str]:
    """What was counted, and how, in a sentence."""
    if "convention" in details:
        counts = ", ".join(f"{count:,} {name}" for name, count in details["counts"].items())
        window = f"{details['context']:,} tokens at a time, {details['stride']:,} of them new"
        weights = f" Weights are {details['weights']}." if "weights" in details else ""
        return [f"Counted as {details['convention']}: {counts}; {window}.{weights}"]
    return [f"Compared by {details['method']}, in 32 bits."] if "method" in details else []


def suite(found: Suite) -> list[RenderableType]:
    """A table as papers print it, and its average."""
    shown = new_table(found.name, "figure", "value", "95 % interval", "n")
    shown.box = box.SIMPLE_HEAD
    for row in found.rows:
        figure = row.figure
        shown.add_row(
            row.name,
            row.measure,
            f"{figure.value:.4f}{_error(figure)}",
            figure.interval,
            f"{row.n:,}",
        )
    said = []
    for name, average in list(found.averages.items())[:1]:
        named = len(found.averaged) <= MOST_NAMED
        over = ", ".join(found.averaged) if named else f"all {len(found.averaged)}"
        said.append(
            f"The average {name} is {average.value:.4f} ({average.interval}), "
            f"each counting the same: {over}."
        )
    return [shown, *said, f"Measured in {found.seconds:.0f} s.", *found.notes]


def sweep(made: Sweep, out: Path) -> list[RenderableType]:
    """Several runs side by side, and what they say together."""
    rows = {trial.name: _trial(own, made) for trial, own in made.done}
    shown = new_table(made.kind, *next(iter(rows.values())))
    shown.box = box.SIMPLE_HEAD
    for name, row in rows.items():
        shown.add_row(name, *row.values(), style="bold" if name == made.best else "")
    failed = [f"{trial.name}: {trial.why}" for trial in made.trials if trial.tuned is None]
    means = new_table("figure", "mean", "deviation")
    for name, (mean, deviation) in made.mean().items():
        means.add_row(name, f"{mean:.4f}", f"± {deviation:.4f}")
    place = f"{out}, all runs are in {out / 'search'}"  # the best one became the whole
    if made.kind != "search":
        place = f"{out / made.best}, all runs are in {out}"
    last = f"The best is {made.best}; its model is in {place}."
    return [shown, *([means] if made.kind == "seeds" else []), *failed, *made.notes, last]


def _trial(own: Tuned, made: Sweep) -> dict[str, str]:
    """A run of several in a few cells; on the CPU memory cannot be told from earlier runs'."""
    figure = own.figures[made.metric]
    row = {
        made.metric: f"{figure.value:.4f}",
        "interval": f"{figure.low:.2f}–{figure.high:.2f}",
        "s": f"{own.seconds:.0f}",
    }
    if made.kind == "search":
        return row
    row |= {"trained": f"{own.trained:,}", "share": f"{own.values()['share']:.1%}"}
    if own.device == "cuda":
        row["GPU MiB"] = f"{own.memory / 2**20:,.0f}"
    return row | {"disk MiB": f"{own.size / 2**20:,.2f}"}
