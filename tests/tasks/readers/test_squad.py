"""SQuAD's JSON and rows of questions, and answers that do not stand where they should."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from firth.tasks.readers import squad
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import AnswerSpan, QuestionExample
from firth.tasks.readers.squad import read_questions
from firth.utils.errors import InputError

CONTEXT = "Ada Lovelace wrote the first program. Ada liked numbers — very much."


def article(*questions: dict[str, Any], context: str = CONTEXT) -> dict[str, Any]:
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": "v2.0", "data": [{"title": "Ada", "paragraphs": [paragraph]}]}


def asked(*answers: tuple[str, int], **fields: Any) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": "q1", "question": "Who?", "answers": given, **fields}


def questions(path: Path, **options: Any) -> list[QuestionExample]:
    return list(read_questions(TaskFile(path, **options)))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, Any], Path]:
    def write(name: str, content: Any) -> Path:
        path = tmp_path / name
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_bytes(text.encode())
        return path

    return write


def test_version_1(file: Callable[[str, Any], Path]) -> None:
    second = {"id": "q2", "question": "What?", "answers": [{"text": "numbers", "answer_start": 48}]}
    data = article(asked(("Ada Lovelace", 0), ("Ada", 38)), second)
    assert questions(file("a.json", data)) == [
        QuestionExample(
            id="q1",
            question="Who?",
            context=CONTEXT,
            answers=(AnswerSpan(text="Ada Lovelace", start=0), AnswerSpan(text="Ada", start=38)),
            line=1,
        ),
        QuestionExample(
            id="q2",
            question="What?",
            context=CONTEXT,
            answers=(AnswerSpan(text="numbers", start=48),),
            line=2,
        ),
    ]


def test_version_2_has_questions_without_an_answer(
    file: Callable[[str, Any], Path], tmp_path: Path
) -> None:
    plausible = [{"text": "Ada", "answer_start": 0}]
    data = article(
        asked(is_impossible=True, plausible_answers=plausible),
        asked(("Ada", 0), id="q2", is_impossible=False),
    )
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(json.dumps(data).encode("utf-8-sig")))
    found = questions(path)
    assert [(e.impossible, len(e.answers)) for e in found] == [(True, 0), (False, 1)]


def test_rows_as_hugging_face_has_them(file: Callable[[str, Any], Path], tmp_path: Path) -> None:
    rows = [
        {"text": ["Ada", "Ada"], "answer_start": [0, 38]},
        {"text": [], "answer_start": []},
    ]
    rows = [
        {"id": f"q{n}", "question": "Who?", "context": CONTEXT, "answers": a}
        for n, a in enumerate(rows)
    ]
    lines = file("a.jsonl", "\n".join(map(json.dumps, rows)))
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    for path in (lines, tmp_path / "a.parquet"):
        found = questions(path)
        assert [e.id for e in found] == ["q0", "q1"]
        assert found[0].answers == (
            AnswerSpan(text="Ada", start=0),
            AnswerSpan(text="Ada", start=38),
        )
        assert (found[1].answers, found[1].impossible, found[1].line) == ((), True, 2)


def test_rows_without_ids_are_counted(file: Callable[[str, Any], Path]) -> None:
    row = {"question": "Who?", "context": "Ada.", "answers": [{"text": "Ada"}]}
    path = file("a.jsonl", f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    assert [(e.id, e.line) for e in questions(path)] == [("1", 1), ("3", 3)]


def test_questions_alone_where_answers_are_not_needed(file: Callable[[str, Any], Path]) -> None:
    path = file("a.json", article({"id": 7, "question": "Who?"}))
    (found,) = questions(path, labels="ignored")
    assert (found.id, found.answers, found.impossible) == ("7", (), False)
    with pytest.raises(InputError, match=r"a\.json question 1 \(id 7\) has no 'answers'"):
        questions(path)


def test_a_place_is_needed_where_an_answer_stands_twice(file: Callable[[str, Any], Path]) -> None:
    once = {"id": "q1", "question": "Who?", "answers": [{"text": "Lovelace"}]}
    assert questions(file("a.json", article(once)))[0].answers[0].start == 4
    twice = {"id": "q1", "question": "Who?", "answers": [{"text": "Ada"}]}
    with pytest.raises(InputError, match="the answer 'Ada' needs 'answer_start'"):
        questions(file("a.json", article(twice)))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (asked(("Byron", 0)), "the answer 'Byron' is not in its context"),
        (asked(("ada lovelace", 0)), "the answer 'ada lovelace' is not in its context"),
        (asked(("Ada  Lovelace", 0)), "is not in its context"),
        (asked(("numbers - very", 48)), "is not in its context"),
        (asked(("Lovelace", 5)), "the answer 'Lovelace' is not at 5, where .* 'ovelace '"),
        (asked(("Ada", -1)), "the answer 'Ada' is not at -1"),
        (asked(("Ada", 999)), "the answer 'Ada' is not at 999"),
        (asked((" ", 3)), "an answer is empty"),
        (asked(("Lovelace", "4")), "needs 'answer_start'"),  # type: ignore[arg-type]
        (asked(("Ada", True)), "needs 'answer_start'"),
        (asked(is_impossible=False), "has 0 answers, but 'is_impossible' is False"),
        (asked(("Ada", 0), is_impossible=True), "has 1 answers, but 'is_impossible' is True"),
        (asked(("Ada", 0), is_impossible="no"), "'is_impossible' is 'no'"),
        (asked(("Ada", 0), question=" "), "'question' is empty"),
        (asked(("Ada", 0), question=3), "'question' is not str but int"),
        (asked() | {"answers": 3}, "'answers' is not a list but int"),
        (asked() | {"answers": ["Ada"]}, "an answer has no 'text'"),
        (asked() | {"answers": {"text": ["Ada"], "answer_start": []}}, "1 answers but 0"),
        (asked() | {"answers": {"text": ["Ada"]}}, "has no 'answer_start'"),
    ],
)
def test_a_bad_question_is_named_by_its_id(
    file: Callable[[str, Any], Path], question: dict[str, Any], message: str
) -> None:
    path = file("a.json", article(asked(("Ada", 0), id="q0"), question))
    with pytest.raises(InputError, match=rf"a\.json question 2 \(id q1\).*{message}") as caught:
        questions(path)
    assert "\n" not in str(caught.value)


def test_unicode_is_not_repaired(file: Callable[[str, Any], Path]) -> None:
    """é as one letter is not e with an accent, and é counts as one place."""
    good = article(asked(("Paris", 10)), context="Café à de Paris")
    assert questions(file("a.json", good))[0].answers[0].start == 10
    other = article(asked(("Cafe\u0301", 0)), context="Café à de Paris")
    with pytest.raises(InputError, match="is not in its context"):
        questions(file("a.json", other))


def test_ids_stand_once(file: Callable[[str, Any], Path]) -> None:
    path = file("a.json", article(asked(("Ada", 0)), asked(("Ada", 0))))
    with pytest.raises(InputError, match=r"question 2 \(id q1\): the id 'q1' .*question 1"):
        questions(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [\n{"paragraphs": }]}', r"a\.json line 2 is not JSON: Expecting value in col"),
        ("[" * 100_000, r"a\.json is not JSON|a\.json line 1 is not JSON"),
        ([1, 2], r"a\.json has no 'data' \(it has no fields\)"),
        ({"rows": []}, r"a\.json has no 'data' \(it has 'rows'\)"),
        ({"data": 7}, r"a\.json: 'data' is not list but int"),
        ({"data": [{}]}, r"a\.json article 1 has no 'paragraphs'"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "article 1, paragraph 1 has no 'context'"),
        (article(7), r"question 1 has no 'question'"),  # type: ignore[arg-type]
        (article(), r"a\.json has no examples"),
        (article(asked(), context=" "), "'context' is empty"),
    ],
)
def test_what_is_wrong_is_named(
    file: Callable[[str, Any], Path], content: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        questions(file("a.json", content))


def test_what_is_no_json_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"data": [\n"caf\xe9"]}')
    with pytest.raises(InputError, match=r"a\.json line 2: byte 15 of the file is not UTF-8"):
        questions(path)
    monkeypatch.setattr(squad, "MAX_JSON_BYTES", 1 << 20)
    bomb = tmp_path / "a.json.gz"
    bomb.write_bytes(gzip.compress(b" " * (8 << 20)))
    with pytest.raises(InputError, match="more than 1 MiB"):
        questions(bomb)


def test_prediction_keeps_no_ids_in_memory(file: Callable[[str, Any], Path]) -> None:
    rows = [{"id": f"{i:010000}", "question": "Who?", "context": CONTEXT} for i in range(300)]
    path = file("q.jsonl", "\n".join(map(json.dumps, rows)))
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_questions(TaskFile(path, labels="ignored", allow_empty=True)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 300
    assert peak < 1_000_000  # all ids are 3 MB
