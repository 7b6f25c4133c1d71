"""Answers for a file of examples, from one model or from several together.

Examples are read, answered and passed on some at a time, so that a file may be longer than the
memory and a pipe need not end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from firth.asking import Progress, answer, cut_note, open_model, work_of
from firth.errors import InputError, MismatchError, Misuse
from firth.model import Model
from firth.streams import windows, with_errors
from firth.tasks.material import check_columns
from firth.tasks.reading.columns import find_source, place, spared
from firth.tasks.task import Answer, Example, Facts, Task

AnyModel = str | Path | Model


@dataclass(frozen=True)
class Predictions:
    """A model's answers, with the examples they are about."""

    task: str
    examples: list[Example]
    answers: list[Answer]
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """The answers as plain JSON values."""
        return {"task": self.task, "predictions": self.answers, "notes": self.notes}


class Predicted(NamedTuple):
    """An example and its answer; of a row that is bad, what is wrong with it: {"error": …}."""

    example: Example | None
    answer: Answer


def predict(
    models: Sequence[AnyModel] | AnyModel,
    *,
    data: str | Path | None = None,
    texts: Sequence[str] = (),
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    device: str | None = None,
    progress: Progress = lambda what, done, there: None,
) -> Predictions:
    """The answers of a model, or of several together, to the examples of a file or to `texts`.

    Several models' probabilities are averaged: an ensemble. `predicting` gives the same one by one.
    """
    how: dict[str, Any] = {"columns": columns, "format": format, "device": device}
    stream = predicting(models, data=data, texts=texts, task=task, **how)
    examples, answers = [], []
    for example, said in stream:
        examples.append(example)
        answers.append(said)
        progress("answered", len(answers), 0)
    return Predictions(stream.task.name, examples, answers, stream.notes)


def predicting(
    models: Sequence[AnyModel] | AnyModel,
    *,
    data: str | Path | None = None,
    texts: Sequence[str] = (),
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    device: str | None = None,
    bad: Callable[[InputError], None] | None = None,
) -> Predicting:
    """The same as a stream, in memory for some examples alone.

    A bad row is told to `bad`, and the others are answered; without it, a bad row is an error.
    """
    if (data is None) != bool(texts):
        raise Misuse("Give texts to answer, or `data` with a file of them: one of the two.")
    # A misspelt file is told at once.
    live = data is not None and find_source(data, format, "txt").is_stream
    several = [models] if isinstance(models, str | Path | Model) else list(models)
    opened = [open_model(model, device) for model in several]
    work = [work_of(model, task) for model in opened]
    chosen, facts = work[0][0], [facts for _, facts in work]
    check_columns(chosen.name, chosen.roles, columns or {})
    if len(opened) > 1:
        _check_alike(chosen, opened, facts)
    if data is None:
        given = [replace(chosen.example(text), line=i) for i, text in enumerate(texts, 1)]
        read = partial(_judged, given, "text")
    else:
        read = partial(_each, chosen, data, format=format, columns=columns or {})
    return Predicting(opened, chosen, facts, read, live, bad)


def _each(
    task: Task, data: str | Path, *, bad: Callable[[InputError], None] | None = None, **options: Any
) -> Iterator[Example]:
    """The examples of a file, one after the other."""
    return _judged(task.each(data, bad=bad, **options), data, bad=bad)


def _judged(
    examples: Iterable[Example],
    name: str | Path,
    *,
    bad: Callable[[InputError], None] | None = None,
) -> Iterator[Example]:
    """Examples of which something can be said; one without a single word is bad."""
    for example in examples:
        if any(text.strip() for text in example.inputs):
            yield example
            continue
        with spared(bad):
            where = f"text {example.line}" if name == "text" else place(name, example.line)
            raise InputError(f"{where} is empty: there is no text to judge.")


class Predicting(Iterator[Predicted]):
    """Answers as they come, and what there is to say of them so far."""

    def __init__(
        self,
        models: Sequence[Model],
        task: Task,
        facts: Sequence[Facts],
        read: Callable[..., Iterator[Example]],
        live: bool,
        bad: Callable[[InputError], None] | None,
    ) -> None:
        self.task = task
        self.done = self.cut = 0
        self._bad, self._answer = bad, partial(answer, models, task, facts)
        rows = read() if bad is None else with_errors(lambda tell: read(bad=tell))
        self._answers = self._answered(windows(rows, _size, live=live))

    def __next__(self) -> Predicted:
        found = next(self._answers)
        self.done += found.example is not None
        return found

    @property
    def notes(self) -> list[str]:
        """What there is to note of all answers so far."""
        return cut_note(self.cut, self.done)

    def _answered(self, found: Iterator[list[Any]]) -> Iterator[Predicted]:
        for window in found:
            examples = [row for row in window if not isinstance(row, InputError)]
            answers, cut = self._answer(examples) if examples else ([], 0)
            self.cut += cut
            said = iter(answers)
            for row in window:
                if isinstance(row, InputError) and self._bad is not None:
                    self._bad(row)
                    yield Predicted(None, {"error": str(row)})
                else:
                    yield Predicted(row, next(said))


def _size(row: Any) -> int:
    """How many characters a model is shown of an example."""
    return 0 if isinstance(row, InputError) else sum(map(len, row.inputs))


def _check_alike(task: Task, models: Sequence[Model], facts: Sequence[Facts]) -> None:
    """Refuse models whose answers have no mean."""
    first, why = facts[0], ""
    if task.writes:
        why = "texts have no mean"
    for model, other in zip(models[1:], facts[1:], strict=True):
        if other.task != first.task:
            why = f"one was taught {first.task}, another {other.task}"
        elif set(other.labels) != set(first.labels) or other.labelling != first.labelling:
            lists = (", ".join(labels) or "none" for labels in (first.labels, other.labels))
            why = f"they do not have the same labels ({' and '.join(lists)})"
        elif task.tokenwise and (
            model.tokenizer_needed().fingerprint != models[0].tokenizer_needed().fingerprint
        ):
            why = f"they cut texts into other tokens, of which each has its score in {first.task}"
    if why:
        raise MismatchError(f"These models cannot be averaged: {why}.")
