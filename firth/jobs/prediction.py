"""Predictions for a file of examples, from one model or an ensemble.

Examples are processed in windows, so that a file may be larger than memory and a pipe need not
end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from firth.data.memory import Data, Source, as_source, is_row, table_rows
from firth.jobs.row_streams import answer_rows
from firth.model import AnyModel, Model, load_if_needed, model_list
from firth.tasks.dataset import check_columns
from firth.tasks.diagnostics import one_class_note, predicted_classes
from firth.tasks.ensembles import (
    Progress,
    are_texts,
    check_ensemble,
    ensemble_answers,
    input_examples,
    resolve_task,
    truncation_note,
)
from firth.tasks.readers.columns import TaskFile, find_source
from firth.tasks.task import Answer, Example, Task, TaskMetadata
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import AS_NULL, BadRows
from firth.utils.devices import Device, restored_torch_state
from firth.utils.errors import InputError, UsageError
from firth.utils.notebook import show_progress
from firth.utils.streams import interleave_errors


@dataclass(frozen=True)
class PredictionResult:
    """Examples with their predictions."""

    task: str
    examples: list[Example | None]
    answers: list[Answer | None]  # None: a bad row, whose error is in `notes`
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {"task": self.task, "predictions": self.answers, "notes": self.notes}


class PredictedRow(NamedTuple):
    """An example and its prediction; None for a bad row."""

    example: Example | None
    answer: Answer | None


@check_arguments
@restored_torch_state()
def predict(
    models: Sequence[AnyModel] | AnyModel,
    texts: Data | None = None,
    *,
    data: Data | None = None,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    strict: bool = False,
    device: Device = None,
    progress: Progress = show_progress,
) -> PredictionResult:
    """Predict `texts`, or the examples of a file or table, with one model or an ensemble.

    `texts` is a text, a list or Series of texts, a dict with one row, a list of rows, or a `Path`.
    An ensemble averages the models' probabilities. The answer of a bad row is None, and its error
    is in the notes; with `strict`, it is raised. `predicting` yields the same row by row.
    """
    how: dict[str, Any] = {"columns": columns, "format": format, "device": device}
    how["bad"] = bad = BadRows(AS_NULL, strict=strict)
    stream = predicting(models, texts, data=data, task=task, **how)
    examples, answers = [], []
    for example, answer in stream:
        examples.append(example)
        answers.append(answer)
        progress("answered", len(answers), 0)
    progress("answered", len(answers), len(answers))
    notes = [*stream.notes, *bad.notes]
    return PredictionResult(stream.task.name, examples, answers, notes)


def predicting(
    models: Sequence[AnyModel] | AnyModel,
    texts: Data | None = None,
    *,
    data: Data | None = None,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    device: Device = None,
    bad: BadRows | None = None,
) -> PredictionStream:
    """Stream predictions, holding only one window of examples in memory.

    Errors of single rows are passed to `bad`, and their predictions are None.
    """
    texts, rows = _texts_or_rows(texts, data)
    # A missing file raises before models are loaded.
    live = rows is not None and find_source(rows, format, "txt").is_stream
    loaded = [load_if_needed(model, device) for model in model_list(models)]
    tasks = [resolve_task(model, task) for model in loaded]
    chosen, metadata = tasks[0][0], [metadata for _, metadata in tasks]
    check_columns(chosen.name, chosen.roles, columns or {})
    if len(loaded) > 1:
        check_ensemble(chosen, loaded, metadata)
    source: TaskFile | Sequence[str | None] = texts
    if rows is not None:
        rows = as_source(rows, "data", chosen.columns, predicts=True)
        source = TaskFile(rows, format, columns or {}, labels="ignored", allow_empty=True)
    read = partial(input_examples, chosen, source)
    return PredictionStream(loaded, chosen, metadata, read, live, bad or BadRows(AS_NULL))


def _texts_or_rows(texts: Data | None, data: Data | None) -> tuple[Sequence[Any], Source | None]:
    """Return texts, or rows of several fields; exactly one of the arguments may be given."""
    if isinstance(texts, Path) and data is None:
        return (), texts
    if texts is None and data is None:
        raise UsageError("Give texts, or a file or rows with `data`.")
    texts = () if texts is None else texts
    one = isinstance(texts, str | Path) or is_row(texts)
    given = [texts] if one else list(table_rows(texts, "texts"))
    if given and data is not None:
        raise UsageError("Give either texts, or a file or rows with `data`.")
    if are_texts(given):
        return given, None if data is None else as_source(data, "data")
    return (), as_source(given, "texts")


class PredictionStream(Iterator[PredictedRow]):
    """An iterator over predictions, with notes on those made so far."""

    def __init__(
        self,
        models: Sequence[Model],
        task: Task,
        metadata: Sequence[TaskMetadata],
        read: Callable[..., Iterator[Example]],
        live: bool,
        bad: BadRows,
    ) -> None:
        self.task = task
        self.done = self.cut = 0
        self._classes: set[str] = set()  # that were predicted
        self._predict = partial(ensemble_answers, models, task, metadata)
        rows = partial(interleave_errors, read)
        size = lambda example: sum(map(len, example.inputs))  # noqa: E731
        self._rows = answer_rows(rows, self._answers, size, bad=bad, live=live)

    def __next__(self) -> PredictedRow:
        example, answer = next(self._rows)
        self.done += example is not None
        return PredictedRow(example, None if isinstance(answer, InputError) else answer)

    @property
    def notes(self) -> list[str]:
        """Notes on all predictions so far."""
        return [*truncation_note(self.cut, self.done), *one_class_note(self._classes, self.done)]

    def _answers(self, examples: list[Example]) -> list[Answer]:
        answers, cut = self._predict(examples)
        self.cut += cut
        self._classes |= predicted_classes(answers)
        return answers
