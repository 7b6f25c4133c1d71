"""Terminal output of `demo`: each chapter when it is finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from firth.cli import terminal
from firth.cli.views.figures import figures

if TYPE_CHECKING:  # it needs torch
    from firth.demo.chapters import ChapterResult, Demo


def demo(demo: Demo) -> Iterator[RenderableType]:
    """Run the chapters: before each, print its title and sentence; after it, its results."""
    from firth.demo.chapters import CHAPTERS, NEXT, NEXT_LEAD, NEXT_TITLE

    for number in demo.numbers:
        chapter = CHAPTERS[number - 1]
        yield from _heading(f"{number}. {chapter.title}", chapter.sentence)
        found = _run(demo, number).findings
        yield from figures(found.figures)
        yield _commands("By hand:", found.commands)
    if len(demo.numbers) > 1:
        yield from _heading(NEXT_TITLE, NEXT_LEAD)
        yield _commands("Three commands:", NEXT)
    yield f"\nAll of this with its figures is on the page {demo.page}."


def values(demo: Demo) -> Iterator[dict[str, Any]]:
    """Run the chapters, and yield the JSON values of each when it is finished."""
    return (_run(demo, number).values() for number in demo.numbers)


def _run(demo: Demo, number: int) -> ChapterResult:
    """Run a chapter with progress on stderr, which disappears before its results are printed."""
    with terminal.progress(stages=True, transient=True) as progress:
        demo.workspace.progress = progress
        return demo.run(number)


def _heading(title: str, sentence: str) -> Iterator[RenderableType]:
    yield ""
    yield Text(title, "bold cyan")
    yield Text(sentence + "\n", "italic")


def _commands(title: str, commands: Sequence[str]) -> Text:
    text = Text(title, "dim")
    for command in commands:
        text.append(f"\n  {command}", "not dim green")
    return text
