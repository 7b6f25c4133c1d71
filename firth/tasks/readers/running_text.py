"""Readers of running text and dialogues."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import (
    PASSAGE,
    TaskFile,
    find_source,
    header_place,
    need_columns,
    place,
    row_field,
    row_text,
    task_rows,
)
from firth.tasks.readers.examples import PassageExample, Turn
from firth.utils.errors import InputError

ROLE, CONTENT = ("role", "from", "speaker"), ("content", "value", "text")  # keys of a turn


def read_passages(file: TaskFile) -> Iterator[PassageExample]:
    """Yield passages of text, so that a file may be larger than memory.

    In plain text, a passage is a block between blank lines; in tables, it is a row. A row of JSON
    or Parquet may be a dialogue: `messages` or `turns`, each with `role` and `content`.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "chats.jsonl")
    >>> _ = path.write_text('{"messages": [{"role": "user", "content": "Hello."}]}')
    >>> next(read_passages(TaskFile(path)))
    PassageExample(text='user: Hello.', turns=(Turn(role='user', content='Hello.'),), line=1)
    """
    source = find_source(file.path, file.format)
    plain, named, column = source.format in ("txt", "md"), file.columns.get("text"), ""
    for line, row in task_rows(source, bad=file.bad):
        where = place(file.path, line)
        with reporting_errors(file.bad):
            column = column or need_columns(PASSAGE, row, header_place(file.path, line), named)[0]
            value = row_field(row, column, where)
            if isinstance(value, list):
                turns = _turns(value, where, column)
                content = "\n".join(f"{turn.role}: {turn.content}" for turn in turns)
                yield PassageExample(text=content, turns=turns, line=line)
            else:
                content = row_text(row, column, where, allow_empty=file.allow_empty)
                yield PassageExample(text=content.rstrip("\r\n") if plain else content, line=line)
    if not column and not file.allow_empty:
        raise InputError(f"{file.path} has no text.")


def read_lines(file: TaskFile, *, complete: bool = False) -> Iterator[str]:
    """Yield the lines of a file with their newlines; a row of a table is a line.

    With `complete`, lines of plain text end with a newline, the last one too, also if the file has
    Windows line ends.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "ptb.txt")
    >>> _ = path.write_text(" no it was n't \\n\\n maybe")
    >>> list(read_lines(TaskFile(path), complete=True))
    [" no it was n't \\n", '\\n', ' maybe\\n']
    """
    source = find_source(file.path, file.format)
    plain, named, column = source.format in ("txt", "md"), file.columns.get("text"), ""
    for line, row in task_rows(source, "file", file.bad):
        content = None
        with reporting_errors(file.bad):
            column = column or need_columns(PASSAGE, row, header_place(file.path, line), named)[0]
            content = row_text(row, column, place(file.path, line))
        if content is None:
            continue
        if not plain:
            yield content if content.endswith("\n") else content + "\n"
            continue
        if complete:
            content = content.replace("\r\n", "\n")
        for one in StringIO(content, newline="\n"):
            yield one + "\n" if complete and not one.endswith("\n") else one


def _turns(value: list[Any], where: str, column: str) -> tuple[Turn, ...]:
    """Parse the turns of a dialogue."""
    turns = []
    for number, turn in enumerate(value, 1):
        this = f"{where}, turn {number} of '{column}'"
        if not isinstance(turn, dict):
            raise InputError(f"{this} is not an object with role and content.")
        role, content = (
            next((n for n in names if n in turn), names[0]) for names in (ROLE, CONTENT)
        )
        if role not in turn or content not in turn:
            raise InputError(f"{this} has no '{role if role not in turn else content}'.")
        turns.append(
            Turn(
                role=row_text(turn, role, this, allow_empty=False),
                content=row_text(turn, content, this),
            )
        )
    if not turns:
        raise InputError(f"{where}: '{column}' has no turns.")
    return tuple(turns)
