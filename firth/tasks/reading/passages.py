"""Running text and dialogues, for language models."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from firth.errors import InputError
from firth.tasks.reading.columns import (
    PASSAGE,
    OnEmpty,
    field,
    find_source,
    header_place,
    need_columns,
    place,
    row_text,
    spared,
    task_rows,
)
from firth.tasks.reading.examples import Passage, Turn
from firth.text.readers import Bad, Convention

SPEAKER, SAID = ("role", "from", "speaker"), ("content", "value", "text")


def read_passages(
    path: str | Path,
    *,
    text: str | None = None,
    documents: Convention = "block",
    on_empty: OnEmpty = "refuse",
    format: str | None = None,
    bad: Bad | None = None,
) -> Iterator[Passage]:
    """Passages of text, one after the other: a file may be longer than the memory.

    In plain text a passage is what `documents` says; in tables it is a row. A row of JSON or
    Parquet may hold a dialogue: `messages` or `turns`, each with `role` and `content`.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "chats.jsonl")
    >>> _ = path.write_text('{"messages": [{"role": "user", "content": "Hello."}]}')
    >>> next(read_passages(path))
    Passage(text='user: Hello.', turns=(Turn(role='user', content='Hello.'),), line=1)
    """
    source = find_source(path, format)
    column = ""
    for line, row in task_rows(source, documents, bad):
        where = place(path, line)
        with spared(bad):
            column = column or need_columns(PASSAGE, row, header_place(path, line), text)[0]
            value = field(row, column, where)
            if isinstance(value, list):
                turns = _turns(value, where, column)
                said = "\n".join(f"{turn.role}: {turn.content}" for turn in turns)
                yield Passage(text=said, turns=turns, line=line)
            else:
                said = row_text(row, column, where, on_empty)
                plain = source.format in ("txt", "md")
                yield Passage(text=said.rstrip("\r\n") if plain else said, line=line)
    if not column and on_empty == "refuse":
        raise InputError(f"{path} holds no text.")


def read_lines(
    path: str | Path,
    *,
    text: str | None = None,
    format: str | None = None,
    complete: bool = False,
) -> Iterator[str]:
    """A file line by line, each with its end; a row of a table is a line.

    With `complete`, the last line of plain text gets an end if it has none.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "ptb.txt")
    >>> _ = path.write_text(" no it was n't \\n\\n maybe")
    >>> list(read_lines(path, complete=True))
    [" no it was n't \\n", '\\n', ' maybe\\n']
    """
    source = find_source(path, format)
    plain, column = source.format in ("txt", "md"), ""
    for line, row in task_rows(source, "file"):
        column = column or need_columns(PASSAGE, row, header_place(path, line), text)[0]
        said = row_text(row, column, place(path, line), "keep")
        if not plain:
            yield said if said.endswith("\n") else said + "\n"
            continue
        for one in StringIO(said, newline="\n"):
            yield one + "\n" if complete and not one.endswith("\n") else one


def _turns(value: list[Any], where: str, column: str) -> tuple[Turn, ...]:
    """The turns of a dialogue, in order."""
    turns = []
    for number, turn in enumerate(value, 1):
        this = f"{where}, turn {number} of '{column}'"
        if not isinstance(turn, dict):
            raise InputError(f"{this} is not an object with role and content.")
        role, content = (
            next((n for n in names if n in turn), names[0]) for names in (SPEAKER, SAID)
        )
        if role not in turn or content not in turn:
            raise InputError(f"{this} has no '{role if role not in turn else content}'.")
        turns.append(
            Turn(
                role=row_text(turn, role, this, "refuse"),
                content=row_text(turn, content, this, "keep"),
            )
        )
    if not turns:
        raise InputError(f"{where}: '{column}' has no turns.")
    return tuple(turns)
