"""Text classification, pair classification, multi-label classification and regression."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from firth.metrics.bootstrap import Metric
from firth.metrics.classification import (
    classification_metrics,
    multilabel_metrics,
    regression_metrics,
)
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile, place, plain_label
from firth.tasks.readers.examples import Label, LabelledExample
from firth.tasks.readers.table_files import read_labelled
from firth.tasks.task import (
    Answer,
    EncodedExample,
    Items,
    Task,
    TaskMetadata,
    log_loss,
    prediction_targets,
)
from firth.training.losses import label_logits
from firth.utils.errors import InputError
from firth.utils.rng import Floats

PREDICTS = {"one": "label", "many": "labels", "number": "number"}


class ClassifyTask(Task):
    """Single- or multi-label text classification."""

    name = "classify"
    about = "text classification: sentiment, topic, spam; one or several labels"
    head = "classify"
    metric = "accuracy"
    columns = "text, label"
    roles = ("text", "text_a", "text_b", "label")
    label_unit = "examples"
    pair: ClassVar[bool | None] = False

    def read(self, file: TaskFile) -> Iterator[LabelledExample]:
        return read_labelled(file, pair=self.pair, numbers=self.numbers)

    def example(self, text: str) -> LabelledExample:
        return super().example(text) if self.pair else LabelledExample(text=text)

    def metadata(
        self, examples: Sequence[LabelledExample], length: int, options: Mapping[str, Any]
    ) -> TaskMetadata:
        many = any(isinstance(example.label, tuple) for example in examples)
        labelling = "number" if self.numbers else "many" if many else "one"
        labels = ("score",) if self.numbers else labels_of(examples)
        plain = super().metadata(examples, length, options)
        return replace(plain, labels=labels, label_type=labelling)

    def with_known_labels(
        self, metadata: TaskMetadata, examples: Sequence[LabelledExample]
    ) -> list[LabelledExample]:
        """Spell labels as in the training data, such as "true" for True of a CSV, "1" for 1.0."""
        spelled = {plain_label(label): label for label in metadata.labels}

        def known(label: str) -> str:
            return label if label in metadata.labels else spelled.get(plain_label(label), label)

        def respelled(label: Label | None) -> Label | None:
            if isinstance(label, tuple):
                return tuple(map(known, label))
            return known(label) if isinstance(label, str) else label

        return [replace(example, label=respelled(example.label)) for example in examples]

    def check(
        self, metadata: TaskMetadata, examples: Sequence[LabelledExample], path: Path
    ) -> None:
        if metadata.label_type == "number":
            return
        known, many = set(metadata.labels), metadata.label_type == "many"
        for example in examples:
            where = place(path, example.line)
            if isinstance(example.label, tuple) != many:
                usual = "a list of labels" if many else "one label"
                raise InputError(f"{where}: examples of the training data have {usual}.")
            for label in _set(example.label):
                if label not in known:
                    raise InputError(
                        f"{where}: the label {label!r} is not in the training data, which has "
                        f"{_listed(metadata.labels)}."
                    )

    def encode(
        self, examples: Sequence[LabelledExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        firsts = template.tokenize([example.text for example in examples])
        seconds = template.tokenize([example.second or "" for example in examples])
        index = {label: id for id, label in enumerate(metadata.labels)}
        items = []
        for example, first, second in zip(examples, firsts, seconds, strict=True):
            pair = example.second is not None
            size = len(first.tokens) + (len(second.tokens) if pair else 0)
            row = template.two(first, second) if pair else template.one(first)
            cut = max(0, size - template.room(pair=pair))
            items.append(
                EncodedExample((row,), _target(example.label, index, metadata.label_type), cut)
            )
        return items

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        targets = [item.target for item in items]
        return prediction_targets(PREDICTS[metadata.label_type], batch.inputs.starts[:-1], targets)

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability of each label, or the predicted number."""
        scores = label_logits(network, self.batch(items, metadata, network.config))
        if metadata.label_type == "one":
            scores = scores.softmax(-1)
        elif metadata.label_type == "many":
            scores = scores.sigmoid()
        return list(scores.double().cpu().numpy())

    def answer(
        self, example: LabelledExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        if metadata.label_type == "number":
            return {"number": float(output[0])}
        scores = dict(zip(metadata.labels, output.tolist(), strict=True))
        if metadata.label_type == "many":
            labels = [label for label, prob in scores.items() if prob > 0.5]
            return {"labels": labels, "scores": scores}
        best = int(output.argmax())
        return {"label": metadata.labels[best], "score": float(output[best]), "scores": scores}

    def metrics(
        self, examples: Sequence[LabelledExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold: list[Any] = [example.label for example in examples]
        if metadata.label_type == "number":
            return regression_metrics(gold, [answer["number"] for answer in answers])
        if metadata.label_type == "many":
            return multilabel_metrics(
                [_set(label) for label in gold], [a["labels"] for a in answers], metadata.labels
            )
        return classification_metrics(
            gold, [answer["label"] for answer in answers], metadata.labels
        )

    def loss(self, items: Items, outputs: Sequence[Floats], metadata: TaskMetadata) -> float:
        predicted, gold = np.stack(outputs), np.array([item.target for item in items])
        if metadata.label_type == "number":
            return float(np.mean((predicted[:, 0] - gold) ** 2))
        if metadata.label_type == "many":
            return log_loss(np.where(gold > 0, predicted, 1 - predicted))
        return log_loss(predicted[np.arange(len(gold)), gold])

    def best(self, metadata: TaskMetadata) -> str:
        return "micro_f1" if metadata.label_type == "many" else self.metric

    def labels(self, example: LabelledExample) -> tuple[Any, ...]:
        return _set(example.label)

    def constant_loss(
        self, examples: Sequence[LabelledExample], metadata: TaskMetadata
    ) -> float | None:
        """
        >>> rows = [LabelledExample(text="a", label="x"), LabelledExample(text="b", label="y")]
        >>> ClassifyTask().constant_loss(rows, TaskMetadata(task="classify", labels=("x", "y")))
        0.6931471805599453
        """
        if metadata.label_type == "number":
            gold: list[Any] = [example.label for example in examples]
            return float(np.var(gold)) or None
        return super().constant_loss(examples, metadata)


class PairTask(ClassifyTask):
    """Classification of pairs of texts."""

    name = "pair"
    about = "classification of two texts: paraphrase, entailment"
    columns = "text_a, text_b, label"
    pair = True


class RegressTask(ClassifyTask):
    """Regression on a text or a pair of texts."""

    name = "regress"
    about = "a number for one or two texts: similarity"
    metric = "pearson"
    columns = "text, label · text_a, text_b, label"
    numbers = True
    pair = None


def labels_of(examples: Sequence[LabelledExample]) -> tuple[str, ...]:
    """Collect the labels, sorted numerically if all are integers, else alphabetically.

    >>> labels_of([LabelledExample(text="a", label="10"), LabelledExample(text="b", label="9")])
    ('9', '10')
    """
    found = {label for example in examples for label in _set(example.label)}
    whole = all(re.fullmatch(r"-?[0-9]+", label) for label in found)
    return tuple(sorted(found, key=int if whole else str))


def _set(label: Any) -> tuple[str, ...]:
    if label is None:
        return ()
    return label if isinstance(label, tuple) else (label,)


def _target(label: Any, index: Mapping[str, int], labelling: str) -> Any:
    if label is None or labelling == "number":
        return label
    if labelling == "one":
        return index[label]
    return np.array([name in label for name in index], dtype=np.float64)


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(repr(label) for label in labels[:8])
    return f"{shown} and {len(labels) - 8} others" if len(labels) > 8 else shown
