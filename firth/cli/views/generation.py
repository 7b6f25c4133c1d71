"""Terminal output of `generate`: completions, token probabilities, decoding methods compared."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.verbs import OutputLine
from firth.tokenizers.display import show_white_space
from firth.utils.errors import InputError

if TYPE_CHECKING:  # these need torch
    from firth.inference.generation.explain import ExplainedToken
    from firth.inference.generation.text_generation import Completion, PromptCompletions

LIKELY, UNLIKELY = 0.5, 0.05  # probabilities shown in green and in red
MAX_CHARACTERS = 300  # of a prompt


def streamed(prompt: str, pieces: Iterable[str | PromptCompletions]) -> Iterator[RenderableType]:
    """Print a completion token by token, after its prompt."""
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


def completed(done: PromptCompletions) -> Iterator[RenderableType]:
    """Show the completions of one prompt; a single one as plain text."""
    several = len(done.completions) > 1
    for number, one in enumerate(done.completions, 1):
        if several:
            yield Text(f"{number}  {_score(one)}", "dim")
        yield OutputLine(safe(one.text) if sys.stdout.isatty() else one.text)
        if one.steps:
            yield steps(one.steps)
            yield Text(_score(one), "dim")


def prompted(done: PromptCompletions | InputError, lines: int) -> Iterator[RenderableType]:
    """Show a prompt of a file with its completions; in a pipe, one line per completion.

    There a bad row is as many empty lines, so that line numbers match those of the input.
    """
    if isinstance(done, InputError):
        yield from () if sys.stdout.isatty() else [OutputLine()] * lines
        return
    if not sys.stdout.isatty():
        prompt = " ".join(done.prompt.split())
        yield from (
            OutputLine(f"{' '.join(one.text.split())}\t{prompt}") for one in done.completions
        )
        return
    prompt = safe(done.prompt)
    yield Text(prompt if len(prompt) <= MAX_CHARACTERS else f"…{prompt[-MAX_CHARACTERS:]}", "dim")
    for one in done.completions:
        yield Text("  → ").append(safe(one.text), "bold")


def steps(found: Iterable[ExplainedToken]) -> Table:
    """Show the probability and rank of each token, and its alternatives."""
    found = list(found)
    table = Table(box=box.SIMPLE_HEAD)
    drawn = any(step.drawn is not None for step in found)
    for column in ("", "token", "P", *(["P sampled"] if drawn else []), "rank", "loss"):
        table.add_column(column, justify="left" if column == "token" else "right", no_wrap=True)
    table.add_column("most probable", overflow="fold")
    for number, step in enumerate(found, 1):
        row = [Text(str(number), "dim"), Text(show_white_space(step.token), "bold")]
        row.append(Text(f"{step.probability:.1%}", _colour(step.probability)))
        row += [Text("" if step.drawn is None else f"{step.drawn:.1%}")] if drawn else []
        others = Text("  ").join(
            Text(show_white_space(one.token), "bold" if one.id == step.id else "").append(
                f" {one.probability:.0%}", "dim"
            )
            for one in step.alternatives
        )
        table.add_row(*row, str(step.rank), f"{step.loss:.3f}", others)
    return table


def strategies(prompt: str, found: Mapping[str, Completion]) -> Table:
    """Compare decoding methods on one prompt, with the log-probability of each completion."""
    table = Table(title=Text(safe(prompt)), title_justify="left", show_lines=True)
    table.add_column("strategy", no_wrap=True)
    table.add_column("log P", justify="right", no_wrap=True)
    table.add_column("per token", justify="right", no_wrap=True)
    table.add_column("text", overflow="fold")
    for name, one in found.items():
        size = len(one.tokens) + (one.finish_reason == "end")
        row: list[Any] = [name, f"{one.logprob:.1f}", f"{one.logprob / max(1, size):.2f}"]
        table.add_row(*row, Text(safe(one.text).strip("\n")))
    return table


def _score(one: Completion) -> str:
    ends = {"end": "ended", "stop": "stopped", "length": "maximum length"}
    return f"log P {one.logprob:.2f}, score {one.score:.3f}, {ends[one.finish_reason]}"


def _colour(probability: float) -> str:
    if probability >= LIKELY:
        return "green"
    return "red" if probability < UNLIKELY else "yellow"


def safe(text: str) -> str:
    """Replace control characters, which a terminal would interpret.

    >>> safe("a\\x1b[2Jb\\n")
    'a�[2Jb\\n'
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "\ufffd" for c in text)
