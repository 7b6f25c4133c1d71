"""The blanks, or the misspelt words, of many texts: read, answered and passed on some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from firth.errors import FirthError, InputError, Misuse
from firth.inference.correct import Corrected, correct_all, make_corrector
from firth.inference.fill import fill_all
from firth.inference.filler import Filled
from firth.model import Model
from firth.streams import windows, with_errors
from firth.tasks.reading.columns import ONLY_TEXT, find_source, texts_in
from firth.text.readers import Source

TEXTS = 256  # that are answered together


class Answered(NamedTuple):
    """A text and what was found; of a row that is bad, what is wrong with it."""

    text: str
    found: Filled | Corrected | None
    error: str = ""

    def values(self) -> dict[str, Any]:
        """The same as plain JSON values."""
        return {"error": self.error} if self.found is None else self.found.values()


Prepare = Callable[[str], Any]  # refuses a text that cannot be answered
Answer = Callable[[Sequence[str], Sequence[Any]], Sequence[Filled | Corrected]]
Bad = Callable[[FirthError], None]


def fill_file(
    model: Model,
    file: str | Path,
    *,
    top: int = 5,
    targets: Sequence[str] = (),
    correct: bool = False,
    column: str | None = None,
    format: str | None = None,
    bad: Bad,
) -> Iterator[Answered]:
    """What may stand in the blanks of each row of a file, as they come; or its corrections.

    Rows that cannot be read or answered are told to `bad`, and the others follow.
    """
    source = find_source(file, format, "txt")
    prepare, answer = _ways(model, top, targets, correct)
    rows = _rows(source, column, prepare)
    for window in windows(rows, lambda row: len(row[0]), most=TEXTS, live=source.is_stream):
        good = [row for row in window if not row[2]]
        found = iter(answer([text for text, *_ in good], [ready for _, ready, _ in good]))
        for text, _, error in window:
            if error:
                bad(InputError(error))
            yield Answered(text, None if error else next(found), error)


def _ways(model: Model, top: int, targets: Sequence[str], correct: bool) -> tuple[Prepare, Answer]:
    """How a text is looked at by itself, and how several are answered together."""
    filler = model.filler()
    if correct:
        corrector = make_corrector(filler)
        return corrector.doubts, partial(correct_all, corrector)
    return filler.read, lambda texts, asked: fill_all(filler, asked, top=top, targets=targets)


def _rows(source: Source, column: str | None, prepare: Prepare) -> Iterator[tuple[str, Any, str]]:
    """Each text, as it is asked about, and what is wrong with it."""
    read = partial(texts_in, source, ONLY_TEXT, column)
    for found in with_errors(read, source.name):
        if isinstance(found, InputError):
            yield "", None, str(found)
            continue
        where, text = found
        try:
            yield text, prepare(text), ""
        except Misuse as error:
            yield text, None, f"{where}: {error}"
