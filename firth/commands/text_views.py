"""What people see of texts that a model writes."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from firth.commands.verbs import Line
from firth.errors import InputError

if TYPE_CHECKING:  # these need torch
    from firth.inference.completions import Completed, Completion
    from firth.inference.explain import Step
    from firth.inference.settings import Generation

LIKELY, UNLIKELY = 0.5, 0.05  # from green to red
SHOWN = 300  # characters of a prompt


def streamed(prompt: str, pieces: Iterable[str | Completed]) -> Iterator[RenderableType]:
    """A text while it is written, behind its prompt."""
    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        console.print(Text(safe(prompt), "dim"), end="")
    try:
        for piece in pieces:
            if isinstance(piece, str):
                sys.stdout.write(safe(piece) if sys.stdout.isatty() else piece)
                sys.stdout.flush()
    finally:
        sys.stdout.write("\n")
        sys.stdout.flush()
    yield from ()


def completed(done: Completed) -> Iterator[RenderableType]:
    """All completions of one prompt; one alone is printed as it is."""
    several = len(done.completions) > 1
    for number, one in enumerate(done.completions, 1):
        if several:
            yield Text(f"{number}  {_score(one)}", "dim")
        yield Line(safe(one.text) if sys.stdout.isatty() else one.text)
        if one.steps:
            yield steps(one.steps)
            yield Text(_score(one), "dim")


def prompted(done: Completed | InputError, lines: int) -> Iterator[RenderableType]:
    """A prompt of many, and what was written behind it; for another program, a line for each.

    A row that is bad is as many empty lines there, so that lines stay beside each other.
    """
    if isinstance(done, InputError):
        yield from () if sys.stdout.isatty() else [Line()] * lines
        return
    if not sys.stdout.isatty():
        prompt = " ".join(done.prompt.split())
        yield from (Line(f"{' '.join(one.text.split())}\t{prompt}") for one in done.completions)
        return
    prompt = safe(done.prompt)
    yield Text(prompt if len(prompt) <= SHOWN else f"…{prompt[-SHOWN:]}", "dim")
    for one in done.completions:
        yield Text("  → ").append(safe(one.text), "bold")


def steps(found: Iterable[Step]) -> Table:
    """How each token was chosen."""
    found = list(found)
    table = Table(box=box.SIMPLE_HEAD)
    drawn = any(step.drawn is not None for step in found)
    for column in ("", "token", "P", *(["drawn with"] if drawn else []), "rank"):
        table.add_column(column, justify="left" if column == "token" else "right", no_wrap=True)
    table.add_column("likeliest", overflow="fold")
    for number, step in enumerate(found, 1):
        row = [Text(str(number), "dim"), Text(visible(step.token), "bold")]
        row.append(Text(f"{step.probability:.1%}", _colour(step.probability)))
        row += [Text("" if step.drawn is None else f"{step.drawn:.1%}")] if drawn else []
        others = Text("  ").join(
            Text(visible(one.token), "bold" if one.id == step.id else "").append(
                f" {one.probability:.0%}", "dim"
            )
            for one in step.alternatives
        )
        table.add_row(*row, str(step.rank), others)
    return table


def strategies(prompt: str, found: Mapping[str, tuple[Generation, Completion]]) -> Table:
    """One prompt under several strategies, with the log-probabilities of what they wrote."""
    table = Table(title=Text(safe(prompt)), title_justify="left", show_lines=True)
    table.add_column("strategy", no_wrap=True)
    table.add_column("log P", justify="right", no_wrap=True)
    table.add_column("per token", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for name, (_, one) in found.items():
        size = len(one.tokens) + (one.ended == "end")
        row: list[Any] = [name, f"{one.logprob:.1f}", f"{one.logprob / max(1, size):.2f}"]
        table.add_row(*row, Text(safe(one.text).strip("\n")))
    return table


def _score(one: Completion) -> str:
    ends = {"end": "ended", "stop": "stopped", "length": "cut at its length"}
    return f"log P {one.logprob:.2f}, score {one.score:.3f}, {ends[one.ended]}"


def _colour(share: float) -> str:
    return "green" if share >= LIKELY else "red" if share < UNLIKELY else "yellow"


def visible(token: str) -> str:
    """A token with its spaces.

    >>> visible(" a"), visible("b\\n")
    ('·a', 'b⏎')
    """
    return safe(token).replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")


def safe(text: str) -> str:
    """A text without what a terminal would obey.

    >>> safe("a\\x1b[2Jb\\n")
    'a�[2Jb\\n'
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
