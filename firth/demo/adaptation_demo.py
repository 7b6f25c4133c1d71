"""The second half of the demo: fine-tune the pre-trained encoder for three tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import PredictionResult, predict
from firth.metrics.bootstrap import Metric

Progress = Callable[[str, int, int], None]

PRETRAINED, SCRATCH = "pre-trained", "scratch"
FEW_LABELS, MANY_LABELS = 100, 1000
NUM_QUESTIONS = 300
# Inputs of the sentiment model; none of them occurs in the stories.
OPINIONS = (
    "What a delightful visit, I enjoyed every minute of it.",
    "The soup was cold and the bread was burnt.",
    "It was not boring at all.",
)
OPINIONS_FILE = "opinions.txt"
NUM_SHOWN = 3  # predictions of each task


@dataclass(frozen=True)
class AdaptationRun:
    """A fine-tuning run of the demo: number of labels, metric, time."""

    name: str
    labels: int
    metric: Metric
    seconds: float


@dataclass(frozen=True)
class AdaptationResult:
    """The fine-tuning runs of the demo, and a few predictions of each."""

    sentiment: list[AdaptationRun]  # pre-trained and from scratch
    opinions: PredictionResult
    entities: AdaptationRun
    named: PredictionResult
    questions: AdaptationRun
    answered: PredictionResult

    def values(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {
            "sentiment": [asdict(run) for run in self.sentiment],
            "opinions": self.opinions.answers,
            "entities": asdict(self.entities),
            "named": self.named.answers,
            "questions": asdict(self.questions),
            "answered": self.answered.answers,
        }


def adapt(
    encoder: Path, stories: Path, out: Path, *, seed: int, progress: Progress
) -> AdaptationResult:
    """Fine-tune an encoder for sentiment (with few labels), entities and question answering."""

    def tune(
        name: str, task: str, folder: str, ending: str, limit: int, **more: Any
    ) -> FinetuneResult:
        return finetune(
            encoder,
            task=task,
            train=stories / folder / f"train.{ending}",
            dev=stories / folder / f"dev.{ending}",
            out=out / name,
            limit=limit,
            seed=seed,
            callback=_progress_callback(name, progress),
            **more,
        )

    texts = out / OPINIONS_FILE
    out.mkdir(parents=True, exist_ok=True)
    texts.write_text("\n".join(OPINIONS), encoding="utf-8")
    sentiment = {
        (name, limit): tune(
            f"sentiment-{name}-{limit}",
            "classify",
            "sentiment",
            "tsv",
            limit,
            scratch=name == SCRATCH,
        )
        for limit in (FEW_LABELS, MANY_LABELS)
        for name in (PRETRAINED, SCRATCH)
    }
    entities = tune("entities", "tag", "entities", "conll", MANY_LABELS)
    questions = tune("questions", "span", "questions", "json", NUM_QUESTIONS, recipe="qa")
    return AdaptationResult(
        sentiment=[_run(name, tuned, "accuracy") for (name, _), tuned in sentiment.items()],
        opinions=predict(sentiment[PRETRAINED, MANY_LABELS].model, data=texts),
        entities=_run("entities", entities, "f1"),
        named=_first(predict(entities.model, data=stories / "entities/test.conll")),
        questions=_run("questions", questions, "f1"),
        answered=_first(predict(questions.model, data=stories / "questions/test.json")),
    )


def _run(name: str, tuned: FinetuneResult, metric: str) -> AdaptationRun:
    return AdaptationRun(name, tuned.examples[0], tuned.metrics[metric], tuned.seconds)


def _first(found: PredictionResult) -> PredictionResult:
    """Select a few predictions, evenly spaced."""
    step = max(1, len(found.answers) // NUM_SHOWN)
    chosen = range(0, step * NUM_SHOWN, step)
    return PredictionResult(
        found.task, [found.examples[i] for i in chosen], [found.answers[i] for i in chosen]
    )


def _progress_callback(name: str, progress: Progress) -> Callable[[str, dict[str, Any]], None]:
    def callback(kind: str, metrics: dict[str, Any]) -> None:
        if kind == "step":
            progress(f"fine-tuning {name}", int(1000 * metrics["progress"]), 1000)

    return callback
