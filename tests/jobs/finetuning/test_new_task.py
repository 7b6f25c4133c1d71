"""A new task is one class and one row of the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.evaluation import evaluate
from firth.jobs.finetuning import FinetuneResult, finetune
from firth.jobs.prediction import predict
from firth.metrics.bootstrap import Metric
from firth.metrics.classification import accuracy
from firth.model import load
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.finetune_recipes import recipe_for
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import LabelledExample
from firth.tasks.readers.table_files import read_labelled
from firth.tasks.registry import TASKS
from firth.tasks.task import (
    Answer,
    EncodedExample,
    Items,
    Task,
    TaskMetadata,
    prediction_targets,
)
from firth.training.losses import label_logits
from firth.utils.errors import MismatchError, UsageError
from tests.jobs.finetuning.toys import TINY, coloured


class Hue(Task):
    """The required methods of a task."""

    name = "hue"
    about = "the colour in a text"
    head = "classify"
    metric = "accuracy"
    architectures = ("encoder",)

    def read(self, file: TaskFile) -> Iterator[LabelledExample]:
        return read_labelled(file)

    def metadata(
        self, examples: Sequence[LabelledExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        labels = tuple(sorted({str(example.label) for example in examples}))
        return replace(super().metadata(examples, length, options), labels=labels)

    def encode(
        self, examples: Sequence[LabelledExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        texts = template.tokenize([example.text for example in examples])
        ids = {label: id for id, label in enumerate(metadata.labels)}
        pairs = zip(texts, examples, strict=True)
        return [EncodedExample((template.one(t),), ids.get(str(e.label))) for t, e in pairs]

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        labels = [item.target for item in items]
        return prediction_targets("label", batch.inputs.starts[:-1], labels)

    def outputs(self, network: LanguageNetwork, items: Items, metadata: TaskMetadata) -> list[Any]:
        scores = label_logits(network, self.batch(items, metadata, network.config))
        return list(scores.softmax(-1).double().cpu().numpy())

    def answer(
        self, example: LabelledExample, item: EncodedExample, output: Any, metadata: TaskMetadata
    ) -> Answer:
        return {"label": metadata.labels[int(output.argmax())]}

    def metrics(
        self, examples: Sequence[LabelledExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold: list[Any] = [example.label for example in examples]
        return accuracy(gold, [answer["label"] for answer in answers])


@pytest.fixture
def teach(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., FinetuneResult]:
    monkeypatch.setitem(TASKS, "hue", Hue())
    train, dev = coloured(tmp_path)

    def run(architecture: str = "encoder", *, out: str = "run", **options: Any) -> FinetuneResult:
        files: dict[str, Any] = {"train": train, "dev": dev, "out": tmp_path / out}
        return finetune(
            models[architecture], task="hue", overrides=TINY | {"steps": 4}, **files | options
        )

    return run


def test_a_new_task_is_fine_tuned_and_evaluated(
    teach: Callable[..., FinetuneResult], tmp_path: Path
) -> None:
    calibrate = teach()
    assert calibrate.config.recipe == "usual"
    dev = tmp_path / "colours-dev.tsv"
    assert load(calibrate.path).task == calibrate.model.task
    assert evaluate(calibrate.path, data=dev).values()["metrics"].keys() == {"accuracy"}
    assert {answer["label"] for answer in predict(calibrate.path, data=dev).answers} <= {"x", "y"}
    other = teach(strategy="probe", out="probe")  # no optimum is known: it is learned step by step
    together = predict([calibrate.path, other.path], data=dev)
    assert len(together.answers) == 32


def test_invalid_options(teach: Callable[..., FinetuneResult]) -> None:
    sentence = "hue .* encoder, .* decoder"
    with pytest.raises(MismatchError, match=sentence):
        teach("decoder")
    with pytest.raises(UsageError, match="`balance` is for"):
        teach(balance=True)
    with pytest.raises(UsageError, match="no recipe 'spam' for hue; there are usual"):
        recipe_for("hue", "spam")
