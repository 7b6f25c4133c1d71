"""Reader of SQuAD's JSON, 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), and of tables of questions.

A row of JSONL or Parquet has `question`, `context`, `answers` and optionally `id`, as in Hugging
Face datasets. The context must contain an answer literally at `answer_start`, which may be missing
if the context contains the answer only once. An empty list of answers means unanswerable.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from firth.data.input_files import InputFile
from firth.data.memory import Source
from firth.data.readers import reporting_errors
from firth.tasks.readers.columns import (
    TaskFile,
    find_source,
    label_text,
    place,
    row_text,
    task_rows,
)
from firth.tasks.readers.examples import AnswerSpan, QuestionExample
from firth.utils.errors import InputError

MAX_JSON_BYTES = 256 << 20  # JSONL has no such limit
START_FIELDS = ("answer_start", "answer_start_first_match")


class SquadRow(NamedTuple):
    """A question as stored in a file."""

    number: int  # of the line, row or question
    where: str
    context: Any
    fields: Mapping[str, Any]


def read_questions(file: TaskFile) -> Iterator[QuestionExample]:
    """Yield questions with their contexts and answers; SQuAD's JSON is read whole.

    For prediction, answers and duplicate ids are ignored.

    >>> import pathlib, tempfile; path = pathlib.Path(tempfile.mkdtemp(), "questions.jsonl")
    >>> row = {"question": "Who?", "context": "Ada sleeps.", "answers": [{"text": "Ada"}]}
    >>> _ = path.write_text(json.dumps(row))
    >>> next(read_questions(TaskFile(path))).answers
    (AnswerSpan(text='Ada', start=0),)
    """
    example: QuestionExample | None = None
    places: dict[str, str] = {}  # by id; empty for prediction, whose input may never end
    for question in _raw(file):
        with reporting_errors(file.bad):
            example = _question(question, file)
            if example.id in places:
                raise InputError(
                    f"{question.where}: the id '{example.id}' is already used in "
                    f"{places[example.id]}; ids must be unique."
                )
            if file.labels == "required":
                places[example.id] = question.where
            yield example
    file.require_examples(example)


# ---- file structure ----------------------------------------------------------------------


def _raw(file: TaskFile) -> Iterator[SquadRow]:
    source = find_source(file.path, file.format or "json")
    if source.format == "json":
        yield from _articles(file, source)
        return
    for line, row in task_rows(source, bad=file.bad):
        where = place(file.path, line)
        with reporting_errors(file.bad):
            yield SquadRow(line, where, _get(row, "context", str, where), row)


def _articles(file: TaskFile, source: InputFile) -> Iterator[SquadRow]:
    """Yield the questions of all paragraphs of all articles."""
    path = file.path
    with source.open() as raw:
        content = source.content(raw, MAX_JSON_BYTES)
    number = 0
    for a, article in enumerate(_get(_parse(path, content), "data", list, f"{path}"), 1):
        of = f"{path} article {a}"
        for p, paragraph in enumerate(_get(article, "paragraphs", list, of), 1):
            this = f"{of}, paragraph {p}"
            with reporting_errors(file.bad):
                context = _get(paragraph, "context", str, this)
                for fields in _get(paragraph, "qas", list, this):
                    number += 1
                    where = place(path, number)
                    if isinstance(fields, dict) and "id" in fields:
                        where += f" (id {fields['id']!s:.60})"
                    yield SquadRow(number, where, context, fields)


def _parse(path: Source, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} line {line}: byte {error.start} of the file is not UTF-8; convert it with "
            "iconv."
        ) from error
    except json.JSONDecodeError as error:
        what = f"{error.msg} in column {error.colno}"
        raise InputError(f"{path} line {error.lineno} is not JSON: {what}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {error}.") from error


def _get(value: Any, name: str, kind: type, where: str) -> Any:
    """Get a required field of a JSON object, of a given type."""
    fields = value if isinstance(value, dict) else {}
    if name not in fields:
        there = ", ".join(repr(field[:30]) for field in list(fields)[:12]) or "no fields"
        raise InputError(f"{where} has no '{name}' (it has {there}).")
    if not isinstance(fields[name], kind):
        what = f"{kind.__name__} but {type(fields[name]).__name__}"
        raise InputError(f"{where}: '{name}' is not {what}.")
    return fields[name]


# ---- questions and answers ----------------------------------------------------------------------


def _question(raw: SquadRow, file: TaskFile) -> QuestionExample:
    _get(raw.fields, "question", str, raw.where)
    context = row_text({"context": raw.context}, "context", raw.where, allow_empty=file.allow_empty)
    answers, impossible = None, None
    if file.labels == "required":
        answers = _answers(raw.fields.get("answers"), context, raw.where)
        impossible = raw.fields.get("is_impossible")
        if answers is None and not impossible:
            raise InputError(f"{raw.where} has no 'answers'; give an empty list if there is none.")
        if impossible not in (None, bool(impossible)) or (
            impossible is not None and answers is not None and impossible == bool(answers)
        ):
            raise InputError(
                f"{raw.where} has {len(answers or ())} answers, but 'is_impossible' is "
                f"{impossible!r}."
            )
    return QuestionExample(
        id=label_text(raw.fields.get("id"), raw.where, "id") or str(raw.number),
        question=row_text(raw.fields, "question", raw.where, allow_empty=file.allow_empty),
        context=context,
        answers=answers or (),
        impossible=bool(impossible) or answers == (),
        line=raw.number,
    )


def _answers(value: Any, context: str, where: str) -> tuple[AnswerSpan, ...] | None:
    """Parse answers, given as objects or as two lists; None if there are none."""
    if value is None:
        return None
    if isinstance(value, dict):  # {"text": [...], "answer_start": [...]}
        texts = _get(value, "text", list, f"{where}, 'answers'")
        starts = _get(value, "answer_start", list, f"{where}, 'answers'")
        if len(texts) != len(starts):
            raise InputError(
                f"{where}: {len(texts)} answers but {len(starts)} values of answer_start."
            )
        value = [
            {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
        ]
    if not isinstance(value, list):
        raise InputError(f"{where}: 'answers' is not a list but {type(value).__name__}.")
    return tuple(_answer(answer, context, where) for answer in value)


def _answer(answer: Any, context: str, where: str) -> AnswerSpan:
    """Parse one answer, which must be in the context at its start."""
    text = _get(answer, "text", str, f"{where}, an answer")
    start = next((answer[name] for name in START_FIELDS if name in answer), None)
    if not text.strip():
        raise InputError(f"{where}: an answer is empty.")
    if text not in context:
        raise InputError(f"{where}: the answer {text!r:.60} is not in its context.")
    if start is None and context.find(text) == context.rfind(text):
        start = context.find(text)
    if not isinstance(start, int) or isinstance(start, bool):
        raise InputError(f"{where}: the answer {text!r:.60} needs 'answer_start'.")
    if start < 0 or not context.startswith(text, start):
        there = context[start : start + len(text)] if start >= 0 else ""
        raise InputError(
            f"{where}: the answer {text!r:.60} is not at {start}, where the context has "
            f"{there!r:.60}; correct 'answer_start', which counts characters from 0."
        )
    return AnswerSpan(text=text, start=start)
