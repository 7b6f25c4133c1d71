"""Reader of texts with a blank and the right words for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firth.data.readers import reporting_errors
from firth.inference.infilling.blanks import find_blanks
from firth.tasks.readers.columns import (
    ANSWER,
    ONLY_TEXT,
    TaskFile,
    empty_field,
    header_place,
    need_columns,
    place,
    row_text,
)
from firth.utils.errors import InputError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClozeExample:
    """A text with one blank, and the words that are right there."""

    text: str
    answers: tuple[str, ...]
    line: int = 0


def read_cloze(file: TaskFile) -> Iterator[ClozeExample]:
    """Yield texts with their answers, of which there may be several, separated by `|`.

    >>> import tempfile, pathlib; path = pathlib.Path(tempfile.mkdtemp(), "cloze.tsv")
    >>> _ = path.write_text("text\\tanswer\\nThe [MASK] quacked.\\tduck|ducks\\n")
    >>> next(read_cloze(TaskFile(path)))
    ClozeExample(text='The [MASK] quacked.', answers=('duck', 'ducks'), line=2)
    """
    found = False
    for line, row in file.table_rows():
        where = place(file.path, line)
        with reporting_errors(file.bad):
            header = header_place(file.path, line)
            [column] = need_columns(ONLY_TEXT, row, header, file.columns.get("text"))
            [answer] = need_columns(ANSWER, row, header)
            text = row_text(row, column, where, allow_empty=False)
            words = tuple(word.strip() for word in row_text(row, answer, where).split("|"))
            if not all(words):
                raise empty_field(where, answer)
            _check_blank(text, where)
            found = True
            yield ClozeExample(text=text, answers=words, line=line)
    file.require_examples(found)


def _check_blank(text: str, where: str) -> None:
    try:
        count = len(find_blanks(text))
    except UsageError as error:
        raise InputError(f"{where}: {error}") from error
    if count != 1:
        raise InputError(f"{where}: the text has {count} blanks; it must have one.")
