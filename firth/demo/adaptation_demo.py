"""The second half of the demo: fine-tune the pre-trained encoder for three tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import PredictionResult, predict
from firth.metrics.bootstrap import Metric, to_json
from firth.training.log import Callback, Metrics

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
            "sentiment": [to_json(run) for run in self.sentiment],
            "opinions": self.opinions.answers,
            "entities": to_json(self.entities),
            "named": self.named.answers,
            "questions": to_json(self.questions),
            "answered": self.answered.answers,
        }


def adapt(
    encoder: Path, stories: Path, out: Path, *, seed: int, progress: Progress
) -> AdaptationResult:
    """Fine-tune an encoder for sentiment (with few labels), entities and question answering."""

    def tune(name: str, task: str, file: str, **more: Any) -> FinetuneResult:
        return finetune(
            encoder,
            task=task,
            train=stories / file.format("train"),
            dev=stories / file.format("dev"),
            out=out / name,
            seed=seed,
            callback=step_callback(f"fine-tuning {name}", progress),
            **more,
        )

    texts = out / OPINIONS_FILE
    out.mkdir(parents=True, exist_ok=True)
    texts.write_text("\n".join(OPINIONS), encoding="utf-8")
    sentiment = {}
    for limit in (FEW_LABELS, MANY_LABELS):
        for name in (PRETRAINED, SCRATCH):
            how = {"limit": limit, "scratch": name == SCRATCH}
            run = tune(f"sentiment-{name}-{limit}", "classify", "sentiment/{}.tsv", **how)
            sentiment[name, limit] = run
    entities = tune("entities", "tag", "entities/{}.conll", limit=MANY_LABELS)
    qa = {"limit": NUM_QUESTIONS, "recipe": "qa"}
    questions = tune("questions", "span", "questions/{}.json", **qa)
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


def step_callback(stage: str, progress: Progress) -> Callback:
    """Make a callback that reports the steps of a training run as progress."""

    def callback(kind: str, metrics: Metrics) -> None:
        if kind == "step":
            progress(stage, int(1000 * metrics["progress"]), 1000)

    return callback
