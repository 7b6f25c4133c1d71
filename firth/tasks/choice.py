"""Multiple choice: score each choice together with the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.readers import Bad
from firth.metrics.bootstrap import Metric
from firth.metrics.classification import accuracy
from firth.models.config import ModelConfig
from firth.models.label_heads import log_softmax_per_sequence
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.classify import MIN_PROB
from firth.tasks.inputs import InputTemplate
from firth.tasks.readers.examples import ChoiceExample
from firth.tasks.readers.table_files import each_choice, read_choices
from firth.tasks.task import (
    NO_COLUMNS,
    Answer,
    Columns,
    EncodedExample,
    Task,
    TaskMetadata,
    input_batch,
    on_empty,
    prediction_targets,
    without_roles,
)
from firth.training.losses import label_logits
from firth.utils.device_transfer import to_device
from firth.utils.rng import Floats


class ChoiceTask(Task):
    """Encode every choice with the text and predict the one with the highest score."""

    name = "choice"
    about = "multiple choice: the right one of several continuations or answers"
    head = "choose"
    metric = "accuracy"
    columns = "text, choices, label"
    roles = ("text", "choices", "label")

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
    ) -> list[ChoiceExample]:
        empty = on_empty(labelled)
        return read_choices(path, need_label=labelled, format=format, on_empty=empty, **columns)

    def iter_examples(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NO_COLUMNS,
        bad: Bad | None = None,
    ) -> Iterator[ChoiceExample]:
        return each_choice(path, format=format, bad=bad, **without_roles(columns, "label"))

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

    def batch(
        self, items: Sequence[EncodedExample], metadata: TaskMetadata, config: ModelConfig
    ) -> Batch:
        units = np.array([len(item.rows) for item in items])
        batch = replace(
            input_batch([row for item in items for row in item.rows], config), group_sizes=units
        )
        if any(item.target is None for item in items):
            return batch
        first = np.concatenate([[0], np.cumsum(units)[:-1]])
        targets = [item.target for item in items]
        wanted = prediction_targets("choice", batch.inputs.starts[first], targets)
        return replace(batch, predictions=wanted)

    def outputs(
        self, network: Transformer, items: Sequence[EncodedExample], metadata: TaskMetadata
    ) -> list[Floats]:
        """Compute the probability of each choice."""
        scores = label_logits(network, self.batch(items, metadata, network.config)).squeeze(-1)
        begins = np.concatenate([[0], np.cumsum([len(item.rows) for item in items])])
        probs = (
            log_softmax_per_sequence(scores, to_device(begins, scores.device))
            .exp()
            .double()
            .cpu()
            .numpy()
        )
        return np.split(probs, begins[1:-1])

    def answers(
        self,
        examples: Sequence[ChoiceExample],
        items: Sequence[EncodedExample],
        outputs: Sequence[Floats],
        metadata: TaskMetadata,
        template: InputTemplate,
    ) -> list[Answer]:
        return [
            {
                "choice": int(probs.argmax()),
                "text": example.choices[int(probs.argmax())],
                "scores": probs.tolist(),
            }
            for example, probs in zip(examples, outputs, strict=True)
        ]

    def metrics(
        self, examples: Sequence[ChoiceExample], answers: Sequence[Answer], metadata: TaskMetadata
    ) -> dict[str, Metric]:
        gold: list[Any] = [example.label for example in examples]
        return accuracy(gold, [answer["choice"] for answer in answers])

    def loss(
        self, items: Sequence[EncodedExample], outputs: Sequence[Floats], metadata: TaskMetadata
    ) -> float:
        right = [probs[item.target] for probs, item in zip(outputs, items, strict=True)]
        return float(-np.log(np.maximum(right, MIN_PROB)).mean())

    def strata(self, examples: Sequence[ChoiceExample]) -> list[Any]:
        return [example.label for example in examples]

    def constant_loss(self, examples: Sequence[ChoiceExample], metadata: TaskMetadata) -> float:
        return float(np.mean([np.log(len(example.choices)) for example in examples]))
