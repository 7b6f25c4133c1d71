"""The prediction of a fine-tuned model: probabilities of labels, a number, tags or an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firth.inspection.task_outputs import Text
from firth.model import Model
from firth.tasks.task import Answer
from firth.utils.errors import MismatchError
from firth.utils.figures import Bar, BarChart, DataTable, Figure

MAX_LABELS = 12


@dataclass(frozen=True)
class TaskPrediction:
    """The answer of a model for its task."""

    task: str
    answer: Answer

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"task": self.task, **self.answer}

    def figures(self) -> tuple[Figure, ...]:
        """Return the most probable labels as bars; of other tasks a table."""
        scores = self.answer.get("scores")
        if isinstance(scores, dict):
            best = sorted(scores.items(), key=lambda one: -one[1])[:MAX_LABELS]
            return (BarChart("Probability of each label", tuple(Bar(*one) for one in best)),)
        if "tags" in self.answer:
            rows = tuple(zip(self.answer["words"], self.answer["tags"], strict=True))
            return (DataTable("", ("word", "tag"), rows, texts=True),)
        rows = tuple(
            (name, f"{value:.3f}" if isinstance(value, float) else str(value))
            for name, value in self.answer.items()
            if name != "id"
        )
        return (DataTable("", ("output", "value"), rows, texts=True),)


def task_prediction(model: Model, text: Text) -> TaskPrediction:
    """Predict the task that a model was fine-tuned on."""
    if model.task is None:
        raise MismatchError(f"{model.source or model.path} was not fine-tuned for a task.")
    return TaskPrediction(model.task.task, model.predict([text])[0] or {})
