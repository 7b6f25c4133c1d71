"""What one example of each task is.

`line` is where it stands in its file, counted from 1 with the header; in Parquet it is the number
of the row, in SQuAD's JSON the number of the question, and 0 for an example that is in no file.
`inputs` is what a model is shown of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Label = str | float | tuple[str, ...]  # a class, a score, or several classes at once


class Example(Protocol):
    """What all examples have."""

    @property
    def line(self) -> int: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """A text, or a pair of texts, and what is said of it: for classify, pair and regress.

    >>> Labelled(text="How fine!", label="positive").inputs
    ('How fine!',)
    """

    text: str
    second: str | None = None
    label: Label | None = None  # None: the file does not say
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text,) if self.second is None else (self.text, self.second)


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A text and its possible continuations or answers, of which one is right."""

    text: str
    choices: tuple[str, ...]
    label: int | None = None  # the place of the right one, from 0
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text, *self.choices)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tagged:
    """The words of a sentence, each with its tag."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    line: int = 0  # of the first word

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.words


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """A part of a text: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about a text, with all answers that are accepted."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    impossible: bool = False  # the text has no answer, and the file says so
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.question, self.context)


@dataclass(frozen=True, kw_only=True, slots=True)
class Translated:
    """A text and what is to be made of it: its translation, its summary, another form."""

    source: str
    target: str | None = None
    line: int = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.source,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What one side of a dialogue says."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """Running text for a language model; of a dialogue also its turns.

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
    """Two sentences that differ in one thing, which makes one of them wrong."""

    good: str
    bad: str
    category: str = ""  # the set it belongs to: what the difference is
    term: str = ""  # the phenomenon
    field: str = ""  # of linguistics
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

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.text,)
