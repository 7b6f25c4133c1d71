"""The example classes of all tasks.

`line` is the line in the file, counted from 1 with the header; in Parquet the number of the row, in
SQuAD's JSON the number of the question, and 0 for an example that is in no file. `inputs` are the
texts that the model gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Label = str | float | tuple[str, ...]  # a class, a score, or several classes at once


class Example(Protocol):
    """The interface of all examples."""

    @property
    def line(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledExample:
    """A text, or a pair of texts, with its label: for classify, pair and regress.

    >>> LabelledExample(text="How fine!", label="positive").inputs
    ('How fine!',)
    """

    text: str
    second: str | None = None
    label: Label | None = None  # None: unlabelled
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text,) if self.second is None else (self.text, self.second)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceExample:
    """A text and its possible continuations or answers, one of which is right."""

    text: str
    choices: tuple[str, ...]
    label: int | None = None  # index of the right choice
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text, *self.choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaggedExample:
    """The words of a sentence, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    line: int = 0  # of the first word

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.words


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSpan:
    """A part of a text: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionExample:
    """A question about a context, with all accepted answers."""

    id: str
    question: str
    context: str
    answers: tuple[AnswerSpan, ...] = ()
    impossible: bool = False  # marked as unanswerable
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.question, self.context)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seq2SeqExample:
    """A source text and its target: a translation, a summary."""

    source: str
    target: str | None = None
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of a dialogue."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PassageExample:
    """Running text for a language model; for a dialogue also its turns.

    The text of a dialogue has one line for each turn, as in `user: Hello.`
    """

    text: str
    turns: tuple[Turn, ...] = ()
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text,)


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimalPair:
    """Two sentences with a minimal difference that makes one of them wrong."""

    good: str
    bad: str
    category: str = ""  # the set of pairs it belongs to
    term: str = ""  # the linguistic phenomenon
    field: str = ""  # the field of linguistics
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.good, self.bad)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastWord:
    """A text without its last word, and that word."""

    text: str
    word: str
    line: int = 0
