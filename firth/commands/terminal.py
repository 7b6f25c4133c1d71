"""How results look in a terminal: tables, coloured tokens, progress bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
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

if TYPE_CHECKING:  # a view imports nothing: who has something to show has done so
    from firth.models.presets import Preset
    from firth.objectives.show import Example
    from firth.pretraining import Trained
    from firth.text import counting
    from firth.text.corpus import Report
    from firth.text.preparation import Prepared
    from firth.text.stories import Summary
    from firth.text.tokenizer import Piece, Tokenizer

COLOURS = ("black on #b8d8e8", "black on #f3d9a4", "black on #c9e4b4", "black on #e6c4dd")
UNKNOWN = "white on red"


@contextmanager
def progress(*, stages: bool = False) -> Iterator[counting.Progress]:
    """A live bar on stderr for each stage of a job; silent when stderr is no terminal.

    With `stages`, a job that takes minutes says there when each of them begins.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    live = sys.stderr.isatty()
    with Progress(*columns, *times, console=console, disable=not live) as bars:
        tasks = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
                if stages and not live:
                    print(what, file=sys.stderr, flush=True)
            bars.update(tasks[what], completed=done, total=total or None)

        yield show


@contextmanager
def training() -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
    """A live line about a run on stderr: loss, speed, time left; notes and validations above it.

    Where stderr is no terminal, notes and validations alone, a line for each.
    """
    if not sys.stderr.isatty():
        yield _plain_training()
        return
    bar = (TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn())
    rest = (TextColumn("{task.fields[figures]}"), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    with Progress(*bar, *rest, console=console) as bars:
        task = bars.add_task("learning", total=1.0, figures="")

        def tell(kind: str, figures: Mapping[str, Any]) -> None:
            if kind == "step":
                done, pace = figures["progress"], _pace(figures)
                name = figures.get("run", "learning")
                bars.update(task, description=name, completed=done, figures=pace)
            elif kind == "validating":
                bars.update(task, description="validating")
            elif kind == "note":
                bars.console.print(Text(_of(figures) + figures["note"], "yellow"))
            elif kind == "validation":
                bars.console.print(_validation(figures))

        yield tell


def _plain_training() -> Callable[[str, Mapping[str, Any]], None]:
    """What a run has to say, for a file that someone looks into while it goes on."""
    begun, each = time.monotonic(), 0.0  # the share of the run that a step is

    def tell(kind: str, figures: Mapping[str, Any]) -> None:
        nonlocal each
        if kind == "step":
            each = figures["progress"] / figures["step"]
        elif kind == "note":
            print(_of(figures) + figures["note"], file=sys.stderr, flush=True)
        elif kind == "validation":
            minutes = (time.monotonic() - begun) / 60
            done = min(1.0, figures["step"] * each)  # not every step is told of
            line = f"{_of(figures)}{done:4.0%} after {minutes:.1f} min  {_losses(figures)}"
            print(line, file=sys.stderr, flush=True)

    return tell


def _pace(figures: Mapping[str, Any]) -> str:
    """One step in a few words."""
    parts = [f"step {figures['step']:,}", f"loss {figures['loss']:.3f}"]
    if "tokens_per_second" in figures:
        parts.append(f"{figures['tokens_per_second']:,.0f} tok/s")
    if "mfu" in figures:
        parts += [f"MFU {figures['mfu']:.0%}", f"{figures['memory'] / 2**30:.1f} GiB"]
    return "  ".join(parts)


def _validation(figures: Mapping[str, Any]) -> Text:
    """A validation: figures, and what the model says now."""
    text = Text(_of(figures) + _losses(figures), "bold")
    for sample in figures.get("samples", ()):
        text.append(f"\n  {sample}", "dim")
    return text


def _of(figures: Mapping[str, Any]) -> str:
    """Which of several runs tells this."""
    return f"{figures['run']}: " if "run" in figures else ""


def _losses(figures: Mapping[str, Any]) -> str:
    """A validation in one line.

    >>> _losses({"step": 1200, "tokens": 9, "loss": 1.25, "accuracy": 0.5, "samples": []})
    'step 1,200  validation  loss 1.250  accuracy 0.500'
    """
    losses = "  ".join(f"{k} {v:.3f}" for k, v in figures.items() if isinstance(v, float))
    return f"step {figures['step']:,}  validation  {losses}"


def trained(trained: Trained) -> list[RenderableType]:
    """A finished run."""
    table = new_table("", "")
    loss = "none" if trained.loss is None else f"{trained.loss:.3f}"
    figures = {
        "parameters": f"{trained.model.parameters:,}",
        "steps": f"{trained.steps:,}",
        "tokens": f"{trained.tokens:,}",
        "minutes": f"{trained.seconds / 60:.1f}",
        "validation loss": loss,
        "written as": trained.family,
    }
    for name, value in figures.items():
        table.add_row(name, value)
    path = trained.path
    return [table, f"The model is in {path}, its curve in {path / 'loss.png'}."]


def report(report: Report) -> Table:
    """What was read, removed and repaired."""
    table = new_table("", "count")
    rows = [("documents", report.documents), ("words", report.words)]
    rows.append(("characters", report.characters))
    rows += [(f"removed: {why}", count) for why, count in sorted(report.removed.items())]
    rows += sorted(report.repaired.items())
    for what, count in rows:
        table.add_row(what, f"{count:,}")
    return table


def prepared(prepared: Prepared) -> list[RenderableType]:
    """The shards that were made, and the report."""
    table = new_table("part", "documents", "sentences", "tokens", "shards")
    for split, totals in prepared.splits.items():
        columns = ("documents", "sentences", "tokens", "shards")
        table.add_row(split, *(f"{totals[column]:,}" for column in columns))
    lines: list[RenderableType] = [report(prepared.report), table]
    if prepared.resumed:
        lines.append("An interrupted run was continued.")
    if "valid" not in prepared.splits:
        lines.append("No document is kept for validation.")
    return [*lines, f"The shards are in {prepared.path}."]


def stories(summary: Summary) -> list[RenderableType]:
    """What the stories hold, and the examples of each task."""
    figures = new_table("", "count")
    for what in ("stories", "words", "vocabulary"):
        figures.add_row(what, f"{getattr(summary, what):,}")
    figures.add_row("long test sentences that train has too", f"{summary.repeated:.1%}")
    table = new_table("task", "train", "dev", "test")
    counts = list(summary.examples.items())
    for parts in zip(counts[::3], counts[1::3], counts[2::3], strict=True):
        table.add_row(parts[0][0].split("/")[0], *(f"{count:,}" for _, count in parts))
    return [figures, table, f"The stories are in {summary.out}."]


def tokenizers(tokenizers: Mapping[str, Tokenizer], texts: Sequence[str]) -> list[RenderableType]:
    """Each text as each tokenizer cuts it, side by side, then how well each one fits."""
    pieces = Table(show_lines=True)
    pieces.add_column("text", max_width=24)
    for name in tokenizers:
        pieces.add_column(name, overflow="fold")
    for text in texts:
        pieces.add_row(text, *(_cut(t.kind, t.pieces(text)) for t in tokenizers.values()))
    fit = new_table("tokenizer", "kind", "vocabulary", "tokens", "tokens per word", "unknown")
    for name, tokenizer in tokenizers.items():
        coverage = tokenizer.coverage(texts)
        fit.add_row(
            name,
            tokenizer.kind,
            f"{len(tokenizer):,}",
            f"{coverage.tokens:,}",
            f"{coverage.fertility:.2f}",
            f"{coverage.unknown_rate:.1%}",
        )
    return [pieces, fit]


def _cut(kind: str, pieces: Sequence[Piece]) -> Text:
    """Pieces in alternating colours, their ids below."""
    line = Text()
    for piece, colour in zip(pieces, cycle(COLOURS)):
        line.append(_readable(kind, piece.token), colour if piece.known else UNKNOWN)
        line.append(" ")
    line.append("\n" + " ".join(str(piece.id) for piece in pieces), "dim")
    return line


def _readable(kind: str, token: str) -> str:
    """A token as its vocabulary writes it, but bytes outside ASCII as the text they stand for.

    >>> _readable("bpe", "ĠÃ©tÃ©"), _readable("bpe", "Ã"), _readable("wordpiece", "##té")
    ('Ġété', '\\\\xc3', '##té')
    """
    if kind != "bpe" or any(character not in BYTES for character in token):
        return token.replace("\n", "⏎")
    spelt = bytes(BYTES[character] for character in token).decode("utf-8", "backslashreplace")
    return spelt.replace(" ", "Ġ").replace("\n", "Ċ")


def _byte_alphabet() -> dict[str, int]:
    """The character GPT-2 writes for each byte: itself if it is visible, else one from 256 on."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


BYTES = _byte_alphabet()


ROLES = {
    "text": "",
    "special": "dim",
    "hidden": "bold white on red",
    "changed": "black on magenta",
    "kept": "black on yellow",
    "prefix": "underline",
}


def objectives(examples: Sequence[Example], reasons: Mapping[str, str]) -> list[RenderableType]:
    """What each objective hides and asks for, as coloured text."""
    table = Table(show_lines=True)
    for column in ("objective", "reads", "is to predict"):
        table.add_column(column, overflow="fold", no_wrap=column == "objective")
    for example in examples:
        reads = Text()
        for word in example.reads:
            reads.append(word.token, ROLES[word.role]).append(" ")
        asked = Text()
        for what, words in example.predicts.items():
            asked.append(f"{what}: ", "dim").append(" ".join(words) + "\n", "green")
        asked.rstrip()
        table.add_row(example.objective, reads, asked)
    key = Text("  ").join(Text(role, style) for role, style in ROLES.items() if role != "text")
    missing = [f"{name} cannot be shown: {reason}" for name, reason in reasons.items()]
    return [table, key, *missing]


def objective_table() -> Table:
    """All objectives: what each hides, for which architecture, and where it comes from."""
    from firth.objectives.table import OBJECTIVES

    table = Table()
    for column in ("objective", "hides and asks for", "architecture", "source"):
        table.add_column(column)
    for name, row in OBJECTIVES.items():
        table.add_row(name, row.about, ", ".join(row.architectures), row.source)
    return table


def presets(rows: Sequence[Preset]) -> RenderableType:
    """Every model that can be pre-trained, one line each; a narrow terminal cuts the source."""
    lines = [_PRESET_COLUMNS]
    lines += [row.values() | {"parameters": _short(row.parameters)} for row in rows]
    text = Text(no_wrap=True, overflow="ellipsis")
    widths = {name: max(len(str(line[name])) for line in lines) for name in _PRESET_COLUMNS}
    for number, line in enumerate(lines):
        cells = [
            f"{line[name]:<{width}}" if name in _PRESET_WORDS else f"{line[name]:>{width}}"
            for name, width in widths.items()
        ]
        figures = " ".join(cells[2:-1])  # so close that they fit into 80 columns
        joined = "  ".join([*cells[:2], figures, cells[-1]])
        text.append(f"{joined.rstrip()}\n", "bold" if number == 0 else "")
    text.rstrip()
    return Group(text)  # alone: joined with other text it would be wrapped


_PRESET_WORDS = ("name", "architecture", "source")
_PRESET_COLUMNS: dict[str, Any] = {
    "name": "preset",
    "architecture": "architecture",
    "layers": "layers",
    "width": "width",
    "heads": "heads",
    "parameters": "size",
    "context": "context",
    "vocabulary": "vocab",
    "source": "source",
}


def _short(number: int) -> str:
    """A large number in a few characters.

    >>> _short(109_482_240), _short(6_738_415_616)
    ('109.5M', '6.74B')
    """
    return f"{number / 1e6:.1f}M" if number < 1e9 else f"{number / 1e9:.2f}B"


def preset(row: Preset) -> list[RenderableType]:
    """One preset with all its fields."""
    table = new_table("field", "value")
    for name, value in row.config.to_dict().items():
        table.add_row(name, str(value))
    about = f"{row.name}: {row.parameters:,} parameters with {', '.join(row.heads)}. {row.source}."
    return [about, table]


def heading(text: str) -> Text:
    return Text(f"\n{text}\n", "bold")


def new_table(*columns: str) -> Table:
    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table
