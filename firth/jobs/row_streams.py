"""Rows that are answered, with errors in the place of bad ones.

Those of a file are answered in windows: it may be larger than memory, and a pipe need not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from firth.data.cleaning import is_invisible
from firth.data.input_files import InputFile
from firth.data.memory import Data, as_source
from firth.data.readers import Bad, reporting_errors
from firth.tasks.readers.columns import ONLY_TEXT, ColumnRole, find_source, texts_in
from firth.training.distributed.ranks import current_ranks
from firth.utils.bad_rows import BadRows
from firth.utils.errors import InputError, UsageError
from firth.utils.streams import (
    MAX_CHARACTERS,
    MAX_ITEMS,
    bounded_batches,
    interleave_errors,
)


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
) -> Iterator[EncodedText | InputError]:
    """Read and encode the texts of a file: its lines, or a table's column.

    A usage error of `encode` is an error of the row, and so is an empty text.
    """

    def read(tell: Bad) -> Iterator[tuple[str, str]]:
        for where, text in texts_in(source, role, column, tell):
            with reporting_errors(tell):
                if is_invisible(text):
                    raise InputError(f"{where} is empty: there is no text.")
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


def read_texts(
    data: Data,
    name: str,
    column: str | None = None,
    format: str | None = None,
    encode: Callable[[str], Any] = str,
    role: ColumnRole = ONLY_TEXT,
) -> list[EncodedText | InputError]:
    """Read and encode a text, or the texts of a list, a table or a file, with errors of bad rows.

    >>> [one, error] = read_texts(["One.", None], "texts")
    >>> one.text, str(error)[:13]
    ('One.', '`texts` row 2')
    """
    if isinstance(data, str):
        return [EncodedText(0, data, encode(data))]
    source = find_source(as_source(data, name), format, "txt")
    return list(encoded_texts(source, role, column, encode))


def answer_rows(
    read: Callable[[], Iterable[Any]],
    answer: Callable[[list[Any]], Iterable[Any]],
    size: Callable[[Any], int],
    *,
    bad: BadRows,
    max_items: int = MAX_ITEMS,
    live: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Yield each row with its answer, or None with the row's error, which `bad` gets as well.

    With `live`, a row does not wait for others that have not arrived yet. Otherwise rows can be
    read twice: if bad rows are errors, all rows are checked before the first one is answered. A
    file whose rows are all bad is an error.
    """
    for row in read() if bad.strict and not live else ():
        if isinstance(row, InputError):
            raise row

    def size_of(row: Any) -> int:
        return 0 if isinstance(row, InputError) else size(row)

    ranks = current_ranks().size  # which divide a window
    windows = bounded_batches(
        read(), size_of, max_size=ranks * MAX_CHARACTERS, max_items=ranks * max_items, live=live
    )
    any_good, first_error = False, None
    for window in windows:
        good = [row for row in window if not isinstance(row, InputError)]
        answers = iter(answer(good) if good else ())
        for row in window:
            if isinstance(row, InputError):
                bad(row)
                first_error = first_error or row
                yield None, row
            else:
                any_good = True
                yield row, next(answers)
    if first_error is not None and not any_good and not live:
        raise InputError(f"All rows are bad. {first_error}")


def as_values(found: Any) -> dict[str, Any] | None:
    """Convert an answer to plain JSON values; None for a bad row."""
    values: dict[str, Any] | None = None if isinstance(found, InputError) else found.values()
    return values
