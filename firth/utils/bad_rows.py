"""Bad rows: reported with their places and counted, while the other rows are processed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from firth.utils.errors import InputError

Row = TypeVar("Row")

logger = logging.getLogger("firth")
MAX_REPORTED = 20  # errors reported one by one
# What happens to bad rows.
SKIPPED, NO_RESULT = "skipped", "without a result"
AS_NULL, AS_NAN = "written as null", "written as NaN"


class BadRows:
    """Collect the errors of single rows; with `strict`, raise the first one.

    `show` gets the errors that are reported one by one, as they are found.

    >>> bad = BadRows(SKIPPED)
    >>> bad(InputError("a.tsv line 3: 'text' is empty."))
    >>> bad.notes
    ["a.tsv line 3: 'text' is empty.", '1 row was bad and skipped.']
    """

    def __init__(
        self,
        treated: str,
        *,
        strict: bool = False,
        show: Callable[[InputError], None] = lambda error: None,
    ) -> None:
        self.treated, self.strict, self.show = treated, strict, show
        self.count = 0
        self.errors: list[str] = []

    def __call__(self, error: InputError) -> None:
        """Count a bad row, or raise its error."""
        if self.strict:
            raise error
        self.count += 1
        if self.count <= MAX_REPORTED:
            self.errors.append(str(error))
            self.show(error)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Name the first bad row in an error that may follow from it."""
        try:
            yield
        except InputError as error:
            if not self.count:
                raise
            raise InputError(f"{error} {self.notes[-1]} {self.errors[0]}") from error

    @property
    def notes(self) -> list[str]:
        """The first errors, then the number of bad rows; none if all rows are good."""
        return bad_row_notes(self.count, self.errors, self.treated)


def answer_good_rows(
    rows: Sequence[Row | InputError],
    answer: Callable[[list[Row]], Iterable[Any]],
    *,
    strict: bool = False,
) -> list[Any]:
    """Return the answer of each row, None for a bad one; log bad rows, or raise the first.

    >>> answer_good_rows([InputError("Row 1 is empty."), "two"], lambda rows: map(len, rows))
    [None, 3]
    """
    bad = BadRows(NO_RESULT, strict=strict)
    good: list[Row] = []
    for row in rows:
        if isinstance(row, InputError):
            bad(row)
        else:
            good.append(row)
    for note in bad.notes:
        logger.warning(note)
    answers = iter(answer(good) if good else ())
    return [None if isinstance(row, InputError) else next(answers) for row in rows]


def raise_error(error: InputError) -> None:
    """Raise the error of a bad row."""
    raise error


def bad_row_notes(count: int, errors: Sequence[str], treated: str) -> list[str]:
    """Return the first errors, and a sentence with the number of bad rows."""
    if not count:
        return []
    first = f"; the first {MAX_REPORTED} are listed" if count > MAX_REPORTED else ""
    rows = "1 row was" if count == 1 else f"{count:,} rows were"
    return [*errors[:MAX_REPORTED], f"{rows} bad and {treated}{first}."]
