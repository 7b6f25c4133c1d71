"""The demo's second half: one pre-trained encoder, adapted three times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firth.finetuning import Tuned, finetune
from firth.metrics.bootstrap import Figure
from firth.prediction import Predictions, predict

Progress = Callable[[str, int, int], None]

KNOWING, SCRATCH = "pre-trained", "scratch"
FEW, MANY = 100, 1000  # labels
ASKED = 300  # questions
# What is asked of the model that learned sentiment; the stories never tell these sentences.
OPINIONS = (
    "What a delightful visit, I enjoyed every minute of it.",
    "The soup was cold and the bread was burnt.",
    "It was not boring at all.",
)
OPINIONS_FILE = "opinions.txt"
SHOWN = 3  # answers of each task


@dataclass(frozen=True)
class Lesson:
    """One run of the demo: with how many labels, and how well."""

    name: str
    labels: int
    figure: Figure
    seconds: float


@dataclass(frozen=True)
class Adapted:
    """What the pre-trained encoder was taught."""

    sentiment: list[Lesson]  # pre-trained and from scratch
    opinions: Predictions
    entities: Lesson
    named: Predictions
    questions: Lesson
    answered: Predictions

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "sentiment": [asdict(lesson) for lesson in self.sentiment],
            "opinions": self.opinions.answers,
            "entities": asdict(self.entities),
            "named": self.named.answers,
            "questions": asdict(self.questions),
            "answered": self.answered.answers,
        }


def adapt(encoder: Path, stories: Path, out: Path, *, seed: int, progress: Progress) -> Adapted:
    """Teach an encoder sentiment with few labels, then entities, then to answer questions."""

    def teach(name: str, task: str, folder: str, ending: str, limit: int, **more: Any) -> Tuned:
        return finetune(
            encoder,
            task=task,
            train=stories / folder / f"train.{ending}",
            dev=stories / folder / f"dev.{ending}",
            out=out / name,
            limit=limit,
            seed=seed,
            listener=_listener(name, progress),
            **more,
        )

    texts = out / OPINIONS_FILE
    out.mkdir(parents=True, exist_ok=True)
    texts.write_text("\n".join(OPINIONS), encoding="utf-8")
    felt = {
        (name, limit): teach(
            f"sentiment-{name}-{limit}",
            "classify",
            "sentiment",
            "tsv",
            limit,
            scratch=name == SCRATCH,
        )
        for limit in (FEW, MANY)
        for name in (KNOWING, SCRATCH)
    }
    entities = teach("entities", "tag", "entities", "conll", MANY)
    questions = teach("questions", "span", "questions", "json", ASKED, recipe="qa")
    return Adapted(
        sentiment=[_lesson(name, tuned, "accuracy") for (name, _), tuned in felt.items()],
        opinions=predict(felt[KNOWING, MANY].model, data=texts),
        entities=_lesson("entities", entities, "f1"),
        named=_first(predict(entities.model, data=stories / "entities/test.conll")),
        questions=_lesson("questions", questions, "f1"),
        answered=_first(predict(questions.model, data=stories / "questions/test.json")),
    )


def _lesson(name: str, tuned: Tuned, metric: str) -> Lesson:
    return Lesson(name, tuned.examples[0], tuned.figures[metric], tuned.seconds)


def _first(found: Predictions) -> Predictions:
    """A few answers, from different texts."""
    apart = max(1, len(found.answers) // SHOWN)
    chosen = range(0, apart * SHOWN, apart)
    return Predictions(
        found.task, [found.examples[i] for i in chosen], [found.answers[i] for i in chosen]
    )


def _listener(name: str, progress: Progress) -> Callable[[str, dict[str, Any]], None]:
    def listen(kind: str, figures: dict[str, Any]) -> None:
        if kind == "step":
            progress(f"teaching {name}", int(1000 * figures["progress"]), 1000)

    return listen
