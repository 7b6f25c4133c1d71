"""The demo as people see it: what it made, chapter by chapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.commands.answer_views import predictions
from firth.commands.terminal import heading, new_table, objectives, prepared, tokenizers
from firth.runs import read_metrics

if TYPE_CHECKING:  # these need torch
    from firth.inference.filler import Guess
    from firth.tour import Passage, Tour
    from firth.tour_tasks import Adapted, Lesson


def tour(tour: Tour) -> list[RenderableType]:
    """What the demo did, chapter by chapter."""
    from firth.tour import PROMPT, TEXTS

    stories = tour.stories
    told = f"{stories.stories:,} stories, {stories.words:,} words, {stories.vocabulary:,} different"
    return [
        heading("A small world to learn from"),
        f"{told}, in {tour.out / 'stories'}. The first one:\n",
        Text(tour.opening, "italic"),
        heading("Two vocabularies from one text"),
        *tokenizers(tour.tokenizers, TEXTS),
        heading("Tokens on disk"),
        *prepared(tour.prepared),
        heading("What is hidden, and what must be predicted"),
        *objectives(tour.objectives, {}),
        f"\nWho may see whom in the three architectures is drawn in {tour.picture}.",
        heading("Three networks of the same block learn"),
        _learned(tour),
        f"The curves are in {tour.curves}.",
        heading("The encoder fills in what it was never told"),
        _fills(tour.fills),
        heading("The decoder writes on"),
        Text(PROMPT, "bold").append(" ").append(tour.continuation, "italic green"),
        heading("The encoder-decoder puts back what was taken out of a story it never saw"),
        _passage(tour.passage, tour.restored),
        *_adapted(tour.adapted),
    ]


def _adapted(made: Adapted) -> list[RenderableType]:
    """One pre-trained encoder, adapted three times."""
    table = new_table("sentiment", "labels", "accuracy", "95 % interval", "seconds")
    for lesson in made.sentiment:
        table.add_row(lesson.name, *_figures(lesson))
    return [
        heading("The encoder is taught sentiment, with few labels"),
        table,
        *predictions(made.opinions),
        heading("and to find names"),
        _said("entity F1", made.entities),
        *predictions(made.named),
        heading("and to answer questions about a story"),
        _said("F1", made.questions),
        *predictions(made.answered),
    ]


def _figures(lesson: Lesson) -> list[str]:
    figure = lesson.figure
    interval = f"{figure.low:.3f} to {figure.high:.3f}"
    return [f"{lesson.labels:,}", f"{figure.value:.3f}", interval, f"{lesson.seconds:.0f}"]


def _said(metric: str, lesson: Lesson) -> str:
    labels, value, interval, seconds = _figures(lesson)
    return f"{metric} {value} ({interval}) after {labels} examples and {seconds} s.\n"


def _learned(tour: Tour) -> Table:
    """One line for each network of the demo."""
    table = new_table(
        "network", "parameters", "tokens", "tokens/s", "first loss", "validation loss"
    )
    for name, run in tour.trained.items():
        first = next(line for line in read_metrics(run.path) if line["kind"] == "step")
        table.add_row(
            name,
            f"{run.model.parameters:,}",
            f"{run.tokens:,}",
            f"{run.tokens / max(run.seconds, 1e-9):,.0f}",
            f"{first['loss']:.2f}",
            f"{run.loss:.2f}",
        )
    return table


def _fills(fills: Mapping[str, Sequence[Guess]]) -> Table:
    """Sentences with a blank, and the likeliest words for it."""
    table = Table()
    for column in ("sentence", "likeliest words"):
        table.add_column(column)
    for text, guesses in fills.items():
        words = Text()
        for i, guess in enumerate(guesses):
            words.append(f"{guess.token} ", "bold green" if i == 0 else "")
            words.append(f"{guess.score:.0%}  ", "dim")
        table.add_row(text, words)
    return table


def _passage(passage: Passage, restored: float) -> Text:
    """A mended text: right in green, wrong in red with what it was."""
    text = Text()
    for was, now in passage.pieces:
        if now is None:
            text.append(f"{was} ")
        elif now == was:
            text.append(now, "bold green").append(" ")
        else:
            text.append(now or "…", "bold red").append(f" ({was}) ", "dim")
    said = f"{passage.right:.0%} of the words here, {restored:.0%} of the tokens of all stories"
    return text.append(f"\n{said} that were held back.", "dim")
