"""Rows of a file that are answered in windows, with errors in the place of bad rows.

A file may be larger than memory, and a pipe need not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from firth.data.input_files import InputFile
from firth.data.readers import Bad
from firth.tasks.readers.columns import ColumnRole, reporting_errors, texts_in
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import MAX_ITEMS, bounded_batches, interleave_errors


class EncodedText(NamedTuple):
    """A text of a file, encoded for a model."""

    number: int  # of the row
    text: str
    encoded: Any


def encoded_texts(
    source: InputFile,
    role: ColumnRole,
    column: str | None,
    encode: Callable[[str], Any],
    *,
    needed_for: str = "",
) -> Iterator[EncodedText | InputError]:
    """Read and encode the texts of a file: its lines, or a table's column.

    A usage error of `encode` is an error of the row, and so is an empty text if texts are
    `needed_for` something.
    """

    def read(tell: Bad) -> Iterator[tuple[str, str]]:
        for where, text in texts_in(source, role, column, tell):
            with reporting_errors(tell):
                if needed_for and not text.strip():
                    raise InputError(f"{where} is empty: {needed_for} needs text.")
                yield where, text

    for number, row in enumerate(interleave_errors(read, source.name)):
        if isinstance(row, InputError):
            yield row
            continue
        where, text = row
        try:
            yield EncodedText(number, text, encode(text))
        except UsageError as error:
            yield InputError(f"{where}: {error}")


def answer_rows(
    rows: Iterable[Any],
    answer: Callable[[list[Any]], Iterable[Any]],
    size: Callable[[Any], int],
    *,
    bad: Bad | None,
    max_items: int = MAX_ITEMS,
    live: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Yield each row with its answer, or None with the row's error, which `bad` gets as well.

    With `live`, a row does not wait for others that have not arrived yet.
    """

    def size_of(row: Any) -> int:
        return 0 if isinstance(row, InputError) else size(row)

    for window in bounded_batches(rows, size_of, max_items=max_items, live=live):
        good = [row for row in window if not isinstance(row, InputError)]
        answers = iter(answer(good) if good else ())
        for row in window:
            if isinstance(row, InputError):
                if bad is not None:
                    bad(row)
                yield None, row
            else:
                yield row, next(answers)


def as_values(found: Any) -> dict[str, Any]:
    """Convert an answer, or the error of a row, to plain JSON values."""
    values: dict[str, Any] = (
        {"error": str(found)} if isinstance(found, InputError) else found.values()
    )
    return values
