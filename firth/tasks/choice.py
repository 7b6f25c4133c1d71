"""Which of several texts goes with another: multiple choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from firth.draws import Floats
from firth.metrics.bootstrap import Figure
from firth.metrics.labels import accuracy
from firth.models.config import ModelConfig
from firth.models.journey import as_tensor
from firth.models.labels import within
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.classify import TINY
from firth.tasks.frame import Frame
from firth.tasks.reading.examples import Choice
from firth.tasks.reading.files import each_choice, read_choices
from firth.tasks.task import (
    NONE,
    Answer,
    Columns,
    Facts,
    Item,
    Task,
    asked,
    on_empty,
    reading,
    without,
)
from firth.text.readers import Bad
from firth.training.losses import label_scores


class Choose(Task):
    """Every choice is read with the text; the one with the highest score is taken."""

    name = "choice"
    about = "the right one of several continuations or answers"
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
        columns: Columns = NONE,
    ) -> list[Choice]:
        empty = on_empty(labelled)
        return read_choices(path, need_label=labelled, format=format, on_empty=empty, **columns)

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Choice]:
        return each_choice(path, format=format, bad=bad, **without(columns, "label"))

    def encode(self, examples: Sequence[Choice], frame: Frame, facts: Facts) -> list[Item]:
        texts = frame.texts([example.text for example in examples])
        choices = iter(frame.texts([choice for e in examples for choice in e.choices]))
        items, room = [], frame.room(pair=True)
        for example, text in zip(examples, texts, strict=True):
            own = [next(choices) for _ in example.choices]
            cut = max(0, len(text.tokens) + max(len(one.tokens) for one in own) - room)
            rows = tuple(frame.two(text, one) for one in own)
            items.append(Item(rows, example.label, cut))
        return items

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        units = np.array([len(item.rows) for item in items])
        batch = replace(reading([row for item in items for row in item.rows], config), units=units)
        if any(item.target is None for item in items):
            return batch
        first = np.concatenate([[0], np.cumsum(units)[:-1]])
        targets = [item.target for item in items]
        wanted = asked("choice", batch.inputs.starts[first], targets)
        return replace(batch, predictions=wanted)

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Floats]:
        """The probability of each choice."""
        scores = label_scores(network, self.batch(items, facts, network.config)).squeeze(-1)
        begins = np.concatenate([[0], np.cumsum([len(item.rows) for item in items])])
        shares = within(scores, as_tensor(begins, scores.device)).exp().double().cpu().numpy()
        return np.split(shares, begins[1:-1])

    def answers(
        self,
        examples: Sequence[Choice],
        items: Sequence[Item],
        outputs: Sequence[Floats],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        return [
            {
                "choice": int(shares.argmax()),
                "text": example.choices[int(shares.argmax())],
                "scores": shares.tolist(),
            }
            for example, shares in zip(examples, outputs, strict=True)
        ]

    def figures(
        self, examples: Sequence[Choice], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold: list[Any] = [example.label for example in examples]
        return accuracy(gold, [answer["choice"] for answer in answers])

    def loss(self, items: Sequence[Item], outputs: Sequence[Floats], facts: Facts) -> float:
        right = [said[item.target] for said, item in zip(outputs, items, strict=True)]
        return float(-np.log(np.maximum(right, TINY)).mean())

    def strata(self, examples: Sequence[Choice]) -> list[Any]:
        return [example.label for example in examples]

    def constant_loss(self, examples: Sequence[Choice], facts: Facts) -> float:
        return float(np.mean([np.log(len(example.choices)) for example in examples]))
