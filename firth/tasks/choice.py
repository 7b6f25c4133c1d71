"""Multiple choice: score each choice together with the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from firth.metrics.bootstrap import Metric
from firth.metrics.classification import accuracy
from firth.models.config import ModelConfig
from firth.models.label_heads import log_softmax_per_sequence
from firth.models.language_model import LanguageNetwork
from firth.objectives.batch import Batch, PredictionTargets
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.examples import ChoiceExample
from firth.tasks.readers.table_files import read_choices
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
from firth.utils.device_transfer import to_device
from firth.utils.rng import Floats, Longs


class ChoiceTask(Task):
    """Encode every choice with the text and predict the one with the highest score."""

    name = "choice"
    about = "multiple choice: the right one of several continuations or answers"
    head = "choose"
    metric = "accuracy"
    columns = "text, choices, label"
    roles = ("text", "choices", "label")

    def read(self, file: TaskFile) -> Iterator[ChoiceExample]:
        return read_choices(file)

    def encode(
        self, examples: Sequence[ChoiceExample], template: InputTemplate, metadata: TaskMetadata
    ) -> list[EncodedExample]:
        texts = template.tokenize([example.text for example in examples])
        choices = iter(template.tokenize([choice for e in examples for choice in e.choices]))
        items, room = [], template.room(pair=True)
        for example, text in zip(examples, texts, strict=True):
            own = [next(choices) for _ in example.choices]
            cut = max(0, len(text.tokens) + max(len(one.tokens) for one in own) - room)
            rows = tuple(template.two(text, one) for one in own)
            items.append(EncodedExample(rows, example.label, cut))
        return items

    def inputs(self, items: Items, config: ModelConfig) -> Batch:
        sizes = np.array([len(item.rows) for item in items])
        return replace(super().inputs(items, config), group_sizes=sizes)

    def targets(
        self, items: Items, batch: Batch, metadata: TaskMetadata
    ) -> dict[str, PredictionTargets]:
        first = batch.inputs.starts[_offsets(items)[:-1]]
        return prediction_targets("choice", first, [item.target for item in items])

    def outputs(
        self, network: LanguageNetwork, items: Items, metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability of each choice."""
        scores = label_logits(network, self.batch(items, metadata, network.config)).squeeze(-1)
        offsets = _offsets(items)
        log_probs = log_softmax_per_sequence(scores, to_device(offsets, scores.device))
        return np.split(log_probs.exp().double().cpu().numpy(), offsets[1:-1])

    def answer(
        self, example: ChoiceExample, item: EncodedExample, output: Floats, metadata: TaskMetadata
    ) -> Answer:
        best = int(output.argmax())
        return {"choice": best, "text": example.choices[best], "scores": output.tolist()}

    def metrics(
        self, examples: Sequence[ChoiceExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold: list[Any] = [example.label for example in examples]
        return accuracy(gold, [answer["choice"] for answer in answers])

    def loss(self, items: Items, outputs: Sequence[Floats], metadata: TaskMetadata) -> float:
        return log_loss([probs[item.target] for probs, item in zip(outputs, items, strict=True)])

    def constant_loss(self, examples: Sequence[ChoiceExample], metadata: TaskMetadata) -> float:
        return float(np.mean([np.log(len(example.choices)) for example in examples]))


def _offsets(items: Items) -> Longs:
    """The index of the first choice of each item, and the number of all choices."""
    return np.cumsum([0, *(len(item.rows) for item in items)])
