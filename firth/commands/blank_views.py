"""What people see of filled blanks and corrected words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.commands.terminal import COLOURS, new_table
from firth.commands.verbs import Line

if TYPE_CHECKING:  # these need torch
    from firth.filling import Answered
    from firth.inference.correct import Corrected
    from firth.inference.filler import Filled, Guess, Whole

REWRITTEN = "The model changed more of the text than its blanks."
FEW = 3  # guesses beside a text, where there are many texts


def filled(found: Filled) -> list[RenderableType]:
    """The guesses for each blank; for several blanks, also the likeliest sentences."""
    if len(found.blanks) == 1:
        guesses = found.blanks[0]
        rewritten = [] if any(guess.token for guess in guesses) else [REWRITTEN]
        return [_guesses("token", guesses), *rewritten]
    tables = [_guesses(f"blank {i}", g) for i, g in enumerate(found.blanks, 1) if g]
    rewritten = [] if tables else [REWRITTEN]
    return [*tables, *([_wholes(found.wholes)] if found.wholes else []), *rewritten]


def _guesses(name: str, guesses: Sequence[Guess]) -> Table:
    table = _table(name, "", "text")
    for guess in guesses:
        table.add_row(Text(guess.token or "–"), _share(guess.score), Text(guess.text))
    return table


def _wholes(wholes: Sequence[Whole]) -> Table:
    table = _table("all together", "", "text")
    for whole in wholes:
        table.add_row(Text(", ".join(whole.tokens) or "–"), _share(whole.score), Text(whole.text))
    return table


def _table(*columns: str) -> Table:
    table = new_table(*columns)
    table.box = box.SIMPLE_HEAD
    for column, justify in zip(table.columns, ("left", "right", "left"), strict=False):
        column.justify = justify  # type: ignore[assignment]
    return table


def _share(score: float) -> str:
    """A probability as a person reads it.

    >>> _share(0.8321), _share(0.00042), _share(1e-9)
    ('83.2 %', '0.042 %', '1e-07 %')
    """
    return f"{100 * score:.1f} %" if score >= 0.001 else f"{100 * score:.2g} %"


def corrected(found: Corrected) -> list[RenderableType]:
    """The corrections, and the text with them."""
    if not found.corrections:
        return ["No word is so unlikely that another, spelt almost like it, would be better."]
    table = _table("word", "at", "correction")
    for name in ("probability", "before", "edits"):
        table.add_column(name, justify="right")
    for one in found.corrections:
        shares = _share(one.score), _share(one.was)
        table.add_row(Text(one.word), str(one.begin), Text(one.correction), *shares, str(one.edits))
    return [table, _marked(found)]


def _marked(found: Corrected) -> Text:
    """The corrected text, corrections in colour."""
    text, at = Text(), 0
    for one in found.corrections:
        text.append(found.text[at : one.begin]).append(one.correction, COLOURS[2])
        at = one.end
    return text.append(found.text[at:])


def rows(found: Iterable[Answered]) -> Iterator[RenderableType]:
    """Many texts: for people with guesses, for another program filled or corrected, line by line.

    A row that is bad is an empty line there, so that lines stay beside each other.
    """
    people = sys.stdout.isatty()
    for row in found:
        if not people:
            yield Line(" ".join(_best(row).splitlines()))
        elif row.found is not None:
            yield _seen(row)


def _best(row: Answered) -> str:
    """A text with what is best in its blanks, or with its corrections."""
    if row.found is None:
        return ""
    said = row.found.values()
    if "corrected" in said:
        return str(said["corrected"])
    best = said.get("sentences") or said["predictions"]
    return str(best[0]["text"]) if best and isinstance(best[0], dict) else row.text


def _seen(row: Answered) -> RenderableType:
    said = row.found.values() if row.found is not None else {}
    if "corrected" in said:
        return _marked(row.found)  # type: ignore[arg-type]
    lists = said["predictions"] if "sentences" in said else [said["predictions"]]
    line = Text(f"{_best(row)}  ")
    for guesses in lists:
        few = ", ".join(f"{guess['token']} {_share(guess['score'])}" for guess in guesses[:FEW])
        line.append(f" [{few}]", "dim")
    return line
