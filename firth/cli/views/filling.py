"""Terminal output of `fill`: candidates for blanks, corrected words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.cli.verbs import OutputLine
from firth.utils.errors import InputError

if TYPE_CHECKING:  # these need torch
    from firth.inference.infilling.fill_methods import FillCandidate, FilledSentence, FillResult
    from firth.inference.infilling.spelling import CorrectedText
    from firth.jobs.filling import FilledRow

REWRITTEN = "The model changed more of the text than its blanks."
MAX_CANDIDATES = 3  # shown after each text of a file


def filled(found: FillResult) -> list[RenderableType]:
    """Show the candidates for each blank; for several blanks, also the most probable sentences."""
    if len(found.blanks) == 1:
        candidates = found.blanks[0]
        rewritten = [] if any(candidate.token for candidate in candidates) else [REWRITTEN]
        return [_candidates("token", candidates), *rewritten]
    tables = [_candidates(f"blank {i}", g) for i, g in enumerate(found.blanks, 1) if g]
    rewritten = [] if tables else [REWRITTEN]
    return [*tables, *([_sentences(found.sentences)] if found.sentences else []), *rewritten]


def _candidates(name: str, candidates: Sequence[FillCandidate]) -> Table:
    table = _table(name, "", "text")
    for candidate in candidates:
        table.add_row(Text(candidate.token or "–"), _percent(candidate.score), Text(candidate.text))
    return table


def _sentences(sentences: Sequence[FilledSentence]) -> Table:
    table = _table("sentence", "", "text")
    for sentence in sentences:
        table.add_row(
            Text(", ".join(sentence.tokens) or "–"), _percent(sentence.score), Text(sentence.text)
        )
    return table


def _table(*columns: str) -> Table:
    table = new_table(*columns)
    table.box = box.SIMPLE_HEAD
    for column, justify in zip(table.columns, ("left", "right", "left"), strict=False):
        column.justify = justify  # type: ignore[assignment]
    return table


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
    table = _table("word", "at", "correction")
    for name in ("probability", "before", "edits"):
        table.add_column(name, justify="right")
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
