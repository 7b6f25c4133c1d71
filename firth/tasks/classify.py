"""Texts and pairs of texts with a label, with many, or with a number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from firth.draws import Floats
from firth.errors import InputError
from firth.metrics.bootstrap import Figure
from firth.metrics.labels import classification, multilabel, regression
from firth.models.config import ModelConfig
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch
from firth.tasks.frame import Frame
from firth.tasks.reading.columns import place
from firth.tasks.reading.examples import Labelled
from firth.tasks.reading.files import each_text, read_labelled
from firth.tasks.task import NONE, Answer, Columns, Facts, Item, Task, asked, on_empty, reading
from firth.text.readers import Bad
from firth.training.losses import label_scores

TINY = 1e-12  # the least probability whose logarithm is taken
PREDICTS = {"one": "label", "many": "labels", "number": "number"}


class Classify(Task):
    """A text with one of several labels, or with any number of them."""

    name = "classify"
    about = "a label for a text: sentiment, topic, spam; or several labels"
    head = "classify"
    metric = "accuracy"
    columns = "text, label"
    roles = ("text", "text_a", "text_b", "label")
    tells_apart = "examples"
    pair: ClassVar[bool | None] = False

    def read(
        self,
        path: str | Path,
        *,
        labelled: bool = True,
        format: str | None = None,
        columns: Columns = NONE,
    ) -> list[Labelled]:
        return read_labelled(
            path,
            pair=self.pair,
            numbers=self.numbers,
            text=_named(columns),
            label=columns.get("label"),
            need_label=labelled,
            on_empty=on_empty(labelled),
            format=format,
        )

    def each(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        columns: Columns = NONE,
        bad: Bad | None = None,
    ) -> Iterator[Labelled]:
        named = _named(columns)
        return each_text(path, pair=self.pair, text=named, format=format, bad=bad)

    def example(self, text: str) -> Labelled:
        return super().example(text) if self.pair else Labelled(text=text)

    def facts(self, examples: Sequence[Labelled], length: int, options: Mapping[str, Any]) -> Facts:
        labelling = labelling_of(examples, self.numbers)
        labels = ("score",) if labelling == "number" else labels_of(examples)
        plain = super().facts(examples, length, options)
        return replace(plain, labels=labels, labelling=labelling)

    def check(self, facts: Facts, examples: Sequence[Labelled], path: Path) -> None:
        if facts.labelling == "number":
            return
        known, many = set(facts.labels), facts.labelling == "many"
        for example in examples:
            where = place(path, example.line)
            if isinstance(example.label, tuple) != many:
                usual = "a list of labels" if many else "one label"
                raise InputError(f"{where}: every example of the training data has {usual}.")
            for label in _set(example.label):
                if label not in known:
                    raise InputError(
                        f"{where}: the label {label!r} does not stand in the training data, which "
                        f"has {_listed(facts.labels)}."
                    )

    def encode(self, examples: Sequence[Labelled], frame: Frame, facts: Facts) -> list[Item]:
        firsts = frame.texts([example.text for example in examples])
        seconds = frame.texts([example.second or "" for example in examples])
        index = {label: id for id, label in enumerate(facts.labels)}
        items = []
        for example, first, second in zip(examples, firsts, seconds, strict=True):
            pair = example.second is not None
            size = len(first.tokens) + (len(second.tokens) if pair else 0)
            row = frame.two(first, second) if pair else frame.one(first)
            cut = max(0, size - frame.room(pair=pair))
            items.append(Item((row,), _target(example.label, index, facts.labelling), cut))
        return items

    def batch(self, items: Sequence[Item], facts: Facts, config: ModelConfig) -> Batch:
        batch = reading([item.rows[0] for item in items], config)
        if any(item.target is None for item in items):
            return batch
        targets = np.array([item.target for item in items])
        wanted = asked(PREDICTS[facts.labelling], batch.inputs.starts[:-1], targets)
        return replace(batch, predictions=wanted)

    def outputs(self, network: Transformer, items: Sequence[Item], facts: Facts) -> list[Floats]:
        """The probability of each label; or the number."""
        scores = label_scores(network, self.batch(items, facts, network.config))
        if facts.labelling == "one":
            scores = scores.softmax(-1)
        elif facts.labelling == "many":
            scores = scores.sigmoid()
        return list(scores.double().cpu().numpy())

    def answers(
        self,
        examples: Sequence[Labelled],
        items: Sequence[Item],
        outputs: Sequence[Floats],
        facts: Facts,
        frame: Frame,
    ) -> list[Answer]:
        say = {"one": _one, "many": _many, "number": _number}[facts.labelling]
        return [say(output, facts.labels) for output in outputs]

    def figures(
        self, examples: Sequence[Labelled], answers: Sequence[Answer], facts: Facts
    ) -> dict[str, Figure]:
        gold: list[Any] = [example.label for example in examples]
        if facts.labelling == "number":
            return regression(gold, [answer["number"] for answer in answers])
        if facts.labelling == "many":
            return multilabel(
                [_set(label) for label in gold], [a["labels"] for a in answers], facts.labels
            )
        return classification(gold, [answer["label"] for answer in answers], facts.labels)

    def loss(self, items: Sequence[Item], outputs: Sequence[Floats], facts: Facts) -> float:
        said, right = np.stack(outputs), np.array([item.target for item in items])
        if facts.labelling == "number":
            return float(np.mean((said[:, 0] - right) ** 2))
        if facts.labelling == "many":
            return float(-np.log(np.maximum(np.where(right > 0, said, 1 - said), TINY)).mean())
        return float(-np.log(np.maximum(said[np.arange(len(right)), right], TINY)).mean())

    def best(self, facts: Facts) -> str:
        return "micro_f1" if facts.labelling == "many" else self.metric

    def strata(self, examples: Sequence[Labelled]) -> list[Any]:
        return [example.label for example in examples]

    def labels(self, example: Labelled) -> tuple[Any, ...]:
        return _set(example.label)

    def constant_loss(self, examples: Sequence[Labelled], facts: Facts) -> float | None:
        """
        >>> rows = [Labelled(text="a", label="x"), Labelled(text="b", label="y")]
        >>> Classify().constant_loss(rows, Facts(task="classify", labels=("x", "y")))
        0.6931471805599453
        """
        if facts.labelling == "number":
            gold: list[Any] = [example.label for example in examples]
            return float(np.var(gold)) or None
        return super().constant_loss(examples, facts)


class Pair(Classify):
    """Two texts with one of several labels."""

    name = "pair"
    about = "a label for two texts: paraphrase, entailment"
    columns = "text_a, text_b, label"
    pair = True


class Regress(Classify):
    """A text, or two, with a number."""

    name = "regress"
    about = "a number for a text or for two: similarity"
    metric = "pearson"
    columns = "text, label · text_a, text_b, label"
    numbers = True
    pair = None


def _named(columns: Columns) -> Any:
    """The column of texts, or the two, that a person has named."""
    texts = tuple(columns[name] for name in ("text", "text_a", "text_b") if name in columns)
    return texts[0] if len(texts) == 1 else texts or None


def labelling_of(examples: Sequence[Labelled], numbers: bool) -> str:
    """What the labels of a file are: one, many, or a number for each text."""
    if numbers:
        return "number"
    return "many" if any(isinstance(example.label, tuple) for example in examples) else "one"


def labels_of(examples: Sequence[Labelled]) -> tuple[str, ...]:
    """The labels that stand in a file, in order: numbers by size, all else by the alphabet.

    >>> labels_of([Labelled(text="a", label="10"), Labelled(text="b", label="9")])
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


def _one(shares: Floats, labels: Sequence[str]) -> Answer:
    best = int(shares.argmax())
    scores = dict(zip(labels, shares.tolist(), strict=True))
    return {"label": labels[best], "score": float(shares[best]), "scores": scores}


def _many(shares: Floats, labels: Sequence[str]) -> Answer:
    scores = dict(zip(labels, shares.tolist(), strict=True))
    return {"labels": [label for label, share in scores.items() if share > 0.5], "scores": scores}


def _number(number: Floats, labels: Sequence[str]) -> Answer:
    return {"number": float(number[0])}


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(repr(label) for label in labels[:8])
    return f"{shown} and {len(labels) - 8} others" if len(labels) > 8 else shown
