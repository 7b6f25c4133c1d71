"""Terminal output of `fill`: candidates for blanks, corrected words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.cli.verbs import OutputLine
from firth.utils.errors import InputError

if TYPE_CHECKING:  # these need torch
    from firth.inference.infilling.fill_methods import FillResult
    from firth.inference.infilling.spelling import CorrectedText
    from firth.jobs.filling import FilledRow

REWRITTEN = "The model changed more of the text than its blanks."
MAX_CANDIDATES = 3  # shown after each text of a file


def filled(found: FillResult) -> list[RenderableType]:
    """Show the candidates for each blank; for several blanks, also the most probable sentences."""
    several = len(found.blanks) > 1
    parts: list[RenderableType] = [
        _fills(f"blank {i}" if several else "token", [(g.token, g.score, g.text) for g in guesses])
        for i, guesses in enumerate(found.blanks, 1)
        if guesses or not several
    ]
    fills = parts if several else [guess for guess in found.blanks[0] if guess.token]
    rewritten = [] if fills else [REWRITTEN]
    if several and found.sentences:
        rows = [(", ".join(one.tokens), one.score, one.text) for one in found.sentences]
        parts.append(_fills("sentence", rows))
    return [*parts, *rewritten]


def _fills(name: str, fills: Iterable[tuple[str, float, str]]) -> Table:
    rows = [(Text(token or "–"), _percent(score), Text(text)) for token, score, text in fills]
    return new_table(name, "", "text", rows=rows, left=(0, 2), plain=True)


def _percent(score: float) -> str:
    """Format a probability as a percentage.

    >>> _percent(0.8321), _percent(0.00042), _percent(1e-9)
    ('83.2 %', '0.042 %', '1e-07 %')
    """
    return f"{100 * score:.1f} %" if score >= 0.001 else f"{100 * score:.2g} %"


def corrected(found: CorrectedText) -> list[RenderableType]:
    """Show the corrections and the corrected text."""
    if not found.corrections:
        return ["No corrections: no similarly spelt word is more probable."]
    columns = ("word", "at", "correction", "probability", "before", "edits")
    table = new_table(*columns, left=(0, 2), plain=True)
    for one in found.corrections:
        probabilities = _percent(one.score), _percent(one.was)
        table.add_row(
            Text(one.word), str(one.begin), Text(one.correction), *probabilities, str(one.edits)
        )
    return [table, _marked(found)]


def _marked(found: CorrectedText) -> Text:
    """Highlight the corrections in the corrected text."""
    text, at = Text(), 0
    for one in found.corrections:
        text.append(found.text[at : one.begin]).append(one.correction, COLOURS[2])
        at = one.end
    return text.append(found.text[at:])


def rows(found: Iterable[FilledRow]) -> Iterator[RenderableType]:
    """Show each text with its candidates in a terminal; in a pipe, one completed text per line.

    A bad row is an empty line there, so that line numbers match those of the input.
    """
    interactive = sys.stdout.isatty()
    for row in found:
        if not interactive:
            yield OutputLine(" ".join(_best(row).splitlines()))
        elif not isinstance(row.found, InputError):
            yield _shown(row)


def _best(row: FilledRow) -> str:
    """Return the text with its best candidates, or with its corrections."""
    if isinstance(row.found, InputError):
        return ""
    values = row.found.values()
    if "corrected" in values:
        return str(values["corrected"])
    best = values.get("sentences") or values["predictions"]
    return str(best[0]["text"]) if best and isinstance(best[0], dict) else row.text


def _shown(row: FilledRow) -> RenderableType:
    assert not isinstance(row.found, InputError)
    values = row.found.values()
    if "corrected" in values:
        return _marked(row.found)  # type: ignore[arg-type]
    lists = values["predictions"] if "sentences" in values else [values["predictions"]]
    line = Text(f"{_best(row)}  ")
    for candidates in lists:
        few = ", ".join(
            f"{candidate['token']} {_percent(candidate['score'])}"
            for candidate in candidates[:MAX_CANDIDATES]
        )
        line.append(f" [{few}]", "dim")
    return line
