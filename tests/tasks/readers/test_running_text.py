"""Passages of plain text, tables and dialogues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import PassageExample, Turn
from firth.tasks.readers.running_text import read_passages
from firth.utils.errors import InputError
from tests.tasks.readers.conftest import read


def test_passages_of_plain_text(file: Callable[..., Path]) -> None:
    path = file("a.txt", "\ufeff\none\ntwo\n\n\nthree\n")
    assert [(p.text, p.line) for p in read(read_passages, path)] == [("one\ntwo", 2), ("three", 6)]
    with pytest.raises(InputError, match="has no text"):
        read(read_passages, file("b.txt", "\n\n"))


def test_passages_are_read_one_at_a_time(file: Callable[..., Path]) -> None:
    passages = read_passages(TaskFile(file("a.jsonl", '{"text": "x"}\n{"text": 7}')))
    assert next(passages) == PassageExample(text="x", line=1)
    with pytest.raises(InputError, match="line 2: 'text' is not text but int"):
        next(passages)


def test_dialogues(file: Callable[..., Path]) -> None:
    turns = (Turn(role="user", content="Hi."), Turn(role="assistant", content="Hello."))
    rows = [
        {"messages": [{"role": t.role, "content": t.content} for t in turns]},
        {"conversations": [{"from": t.role, "value": t.content} for t in turns]},
    ]
    for row in rows:
        (passage,) = read(read_passages, file("a.jsonl", [row]))
        assert (passage.turns, passage.text) == (turns, "user: Hi.\nassistant: Hello.")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([], "'messages' has no turns"),
        (["Hi."], "turn 1 of 'messages' is not an object with role and content"),
        ([{"role": "user"}], "turn 1 of 'messages' has no 'content'"),
        ([{"content": "x"}], "turn 1 of 'messages' has no 'role'"),
        ([{"role": "user", "content": 7}], "'content' is not text but int"),
    ],
)
def test_bad_dialogues(file: Callable[..., Path], turns: object, message: str) -> None:
    with pytest.raises(InputError, match=rf"a\.jsonl line 1.*{message}"):
        read(read_passages, file("a.jsonl", [{"messages": turns}]))
