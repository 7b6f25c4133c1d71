"""Terminal output of `fill`: candidates for blanks, corrected words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from firth.cli.terminal import COLOURS, new_table
from firth.cli.verbs import OutputLine
from firth.utils.errors import InputError

if TYPE_CHECKING:  # these need torch
    from firth.inference.infilling.fill_methods import FillCandidate, FillResult
    from firth.inference.infilling.spelling import CorrectedText
    from firth.jobs.fill_comparison import AccuracyComparison, FillComparison
    from firth.jobs.filling import FilledRow
    from firth.metrics.bootstrap import Metric

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


def compared(found: FillComparison) -> list[RenderableType]:
    """Show the fills of two models side by side, and the probability of the right word."""
    table = new_table("", left=(0, 1, 3), plain=True)
    for model in found.models:
        table.add_column(f"{model.context}: {model.model}")
        table.add_column("P", justify="right")
    pairs = zip_longest(*(model.predictions for model in found.models))
    for number, pair in enumerate(pairs, 1):
        table.add_row(str(number), *chain.from_iterable(map(_cells, pair)))
    answers = [model.answer for model in found.models]
    if any(answers):
        table.add_section()
        table.add_row("right", *chain.from_iterable(map(_cells, answers)))
    return [*(Text(f"{one.model} reads: {one.read}") for one in found.models), table]


def _cells(fill: FillCandidate | None) -> list[RenderableType]:
    return [Text(fill.token), _percent(fill.score)] if fill is not None else ["", ""]


def accuracies(found: AccuracyComparison) -> list[RenderableType]:
    """Show the accuracy of two models on the same blanks, and the difference."""
    rows = [
        (Text(one.model), one.context, f"{one.accuracy.value:.4f}", one.accuracy.interval)
        for one in found.models
    ]
    gain = found.difference
    rows.append((Text("difference"), "", f"{gain.value:+.4f}", gain.interval))
    columns = ("model", "context", "accuracy", "95 % interval")
    several = [f"{one.several_tokens} for {one.model}" for one in found.models]
    return [
        new_table(*columns, rows=rows, left=(0, 1), plain=True),
        f"{found.n:,} texts; right words of several tokens: {', '.join(several)}.",
        _verdict(gain),
    ]


def _verdict(gain: Metric) -> str:
    if gain.low is None or gain.high is None or gain.low <= 0 <= gain.high:
        return "The difference is not significant: these texts do not decide which model is better."
    better = "first" if gain.value > 0 else "second"
    return f"The {better} model is better: the interval of the difference does not contain 0."


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
