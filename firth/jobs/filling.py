"""Mask filling and spelling correction for the rows of a file, in windows of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from firth.data.readers import InputFile
from firth.inference.infilling.fill_methods import FillResult
from firth.inference.infilling.mask_filling import fill_batch
from firth.inference.infilling.spelling import CorrectedText, correct_batch, make_corrector
from firth.model import Model
from firth.tasks.readers.columns import ONLY_TEXT, find_source, texts_in
from firth.utils.errors import FirthError, InputError, UsageError
from firth.utils.streams import bounded_batches, interleave_errors

BATCH_TEXTS = 256


class FilledRow(NamedTuple):
    """A text and its result; for a row with an error, the message."""

    text: str
    found: FillResult | CorrectedText | None
    error: str = ""

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {"error": self.error} if self.found is None else self.found.values()


Prepare = Callable[[str], Any]  # parses one text, raising UsageError if it cannot be processed
Answer = Callable[[Sequence[str], Sequence[Any]], Sequence[FillResult | CorrectedText]]
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
) -> Iterator[FilledRow]:
    """Fill the blanks of each row of a file, or correct its spelling, row by row.

    Errors of single rows are passed to `bad`, and the stream continues.
    """
    source = find_source(file, format, "txt")
    prepare, answer = _functions(model, top, targets, correct)
    rows = _rows(source, column, prepare)
    for window in bounded_batches(
        rows, lambda row: len(row[0]), max_items=BATCH_TEXTS, live=source.is_stream
    ):
        good = [row for row in window if not row[2]]
        found = iter(answer([text for text, *_ in good], [ready for _, ready, _ in good]))
        for text, _, error in window:
            if error:
                bad(InputError(error))
            yield FilledRow(text, None if error else next(found), error)


def _functions(
    model: Model, top: int, targets: Sequence[str], correct: bool
) -> tuple[Prepare, Answer]:
    """The functions that parse one text and that process several together."""
    filler = model.blank_filler()
    if correct:
        corrector = make_corrector(filler)
        return corrector.find_suspects, partial(correct_batch, corrector)
    return filler.encode, lambda texts, encoded: fill_batch(
        filler, encoded, top=top, targets=targets
    )


def _rows(
    source: InputFile, column: str | None, prepare: Prepare
) -> Iterator[tuple[str, Any, str]]:
    """Yield each text, its parsed form and its error message."""
    read = partial(texts_in, source, ONLY_TEXT, column)
    for found in interleave_errors(read, source.name):
        if isinstance(found, InputError):
            yield "", None, str(found)
            continue
        where, text = found
        try:
            yield text, prepare(text), ""
        except UsageError as error:
            yield text, None, f"{where}: {error}"
