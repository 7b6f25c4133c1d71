"""A new task is one class and one row: nothing else has to know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firth.errors import MismatchError, Misuse
from firth.evaluation import evaluate
from firth.finetuning import Tuned, finetune
from firth.metrics.bootstrap import Figure
from firth.metrics.labels import accuracy
from firth.model import load
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.prediction import predict
from firth.tasks.frame import Frame
from firth.tasks.reading.examples import Labelled
from firth.tasks.reading.files import read_labelled
from firth.tasks.recipes import recipe_for
from firth.tasks.table import TASKS
from firth.tasks.task import NONE, Answer, Columns, Facts, Item, Task, asked, reading
from firth.training.losses import label_scores

from .toys import TINY, coloured


class Hue(Task):
    """The seven steps, and nothing that may be left out."""

    name = "hue"
    about = "the colour in a text"
    head = "classify"
    metric = "accuracy"
    architectures = ("encoder",)

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Labelled]:
        return read_labelled(path, need_label=labelled, format=format)

    def facts(self, examples: Sequence[Labelled], length: int, options: Mapping[str, Any]) -> Facts:
        labels = tuple(sorted({str(example.label) for example in examples}))
        return replace(super().facts(examples, length, options), labels=labels)

    def encode(self, examples: Sequence[Labelled], frame: Frame, facts: Facts) -> list[Item]:
        texts = frame.texts([example.text for example in examples])
        targets = [facts.labels.index(str(example.label)) for example in examples]
        return [Item((frame.one(t),), target) for t, target in zip(texts, targets, strict=True)]

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        batch = reading([item.rows[0] for item in items], config)
        targets = [item.target for item in items]
        return replace(batch, predictions=asked("label", batch.inputs.starts[:-1], targets))

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Any]:
        scores = label_scores(network, self.batch(items, facts, network.config))
        return list(scores.softmax(-1).double().cpu().numpy())

    def answers(
        self,
        examples: Sequence[Labelled],
        items: Sequence[Item],
        outputs: Sequence[Any],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        return [{"label": facts.labels[int(shares.argmax())]} for shares in outputs]

    def figures(
        self, examples: Sequence[Labelled], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold: list[Any] = [example.label for example in examples]
        return accuracy(gold, [answer["label"] for answer in answers])


@pytest.fixture
def teach(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Tuned]:
    monkeypatch.setitem(TASKS, "hue", Hue())
    train, dev = coloured(tmp_path)

    def run(architecture: str = "encoder", *, out: str = "run", **options: Any) -> Tuned:
        files: dict[str, Any] = {"train": train, "dev": dev, "out": tmp_path / out}
        return finetune(
            models[architecture], task="hue", changes=TINY | {"steps": 4}, **files | options
        )

    return run


def test_it_is_taught_asked_and_measured(teach: Callable[..., Tuned], tmp_path: Path) -> None:
    tuned = teach()
    assert tuned.job.recipe == "usual"
    dev = tmp_path / "colours-dev.tsv"
    assert load(tuned.path).task == tuned.model.task
    assert evaluate(tuned.path, data=dev).values()["metrics"].keys() == {"accuracy"}
    assert {answer["label"] for answer in predict(tuned.path, data=dev).answers} <= {"x", "y"}
    other = teach(strategy="probe", out="probe")  # no optimum is known: it is learned step by step
    together = predict([tuned.path, other.path], data=dev)
    assert len(together.answers) == 32


def test_what_it_cannot_is_said(teach: Callable[..., Tuned]) -> None:
    sentence = "hue takes a model of the kind encoder, and this one is decoder"
    with pytest.raises(MismatchError, match=sentence):
        teach("decoder")
    with pytest.raises(Misuse, match="--balance weighs labels"):
        teach(balance=True)
    with pytest.raises(Misuse, match="no recipe 'spam' for hue; there are usual"):
        recipe_for("hue", "spam")
