"""The dataset of a fine-tuning run: reading, held-out split, sampling and batch order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firth.data.sampler import SamplerPosition, in_order
from firth.models.config import ModelConfig
from firth.objectives.batch import Batch
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.tasks.readers.subsampling import overlap, stratified_folds, stratified_sample
from firth.tasks.task import EncodedExample, Example, Task, TaskMetadata
from firth.training.config import FinetuneTrainingConfig, parse_value, unknown_setting
from firth.training.state import PlannedBatch, TrainingState
from firth.utils.errors import InputError, UsageError
from firth.utils.rng import Longs, derive_key, derive_keys, uniform

HELD_OUT_FRACTION = 0.1  # of the training data, if there is no dev file
MIN_HELD_OUT, MAX_HELD_OUT = 50, 1000  # examples
MAX_HELD_OUT_PARTS = 4  # hold out at most one quarter of the training data
FOLDS = 5  # of cross-validation, for smaller training sets
ORDER = 60  # random stream: the order of an epoch
IMBALANCE = 4.0  # warn if the most frequent label is this many times the rarest


@dataclass(frozen=True)
class TaskDataset:
    """Training and dev examples, their metadata, and notes for the user."""

    train: list[Example]
    dev: list[Example]
    metadata: TaskMetadata
    notes: list[str]
    evaluated_on: str = "dev set"  # what the metrics of the run are computed on
    folds: list[list[int]] = field(default_factory=list)  # of the training examples


def load_dataset(
    task: Task,
    train: TaskFile,
    dev: TaskFile | None,
    *,
    limit: int,
    seed: int,
    max_length: int,
    options: Mapping[str, Any],
    balance: bool = False,
) -> TaskDataset:
    """Read the files; without a dev file, hold out part of the training data."""
    check_columns(task.name, task.roles, train.columns)
    chosen_options = _options(task, options)
    examples = list(good_examples(task.read, train))
    metadata = task.metadata(examples, max_length, chosen_options)
    task.check(metadata, examples, Path(str(train.path)))
    notes = task.data_notes(examples, Path(str(train.path)))
    if dev is not None:
        held_out = task.with_known_labels(metadata, list(good_examples(task.read, dev)))
        task.check(metadata, held_out, Path(str(dev.path)))
    cut = 0 < limit < len(examples)
    where = f"{train.path} with --limit {limit}" if cut else str(train.path)
    if limit:
        if limit < 0:
            raise UsageError(f"--limit must be at least 0, not {limit}.")
        chosen, _ = stratified_sample(task.strata(examples), count=limit, seed=seed)
        examples = [examples[i] for i in chosen]
    if dev is not None and (same := overlap(examples, held_out)):
        notes.append(
            f"{same:,} of the {len(held_out):,} examples in {dev.path} are in the training data as "
            "well, so metrics are too optimistic."
        )
    dataset = TaskDataset(examples, held_out if dev is not None else [], metadata, notes)
    if dev is None:
        dataset = _without_dev_set(task, dataset, seed, where)
    labels = _labels_seen(task, dataset.train, metadata, where, balance)
    return replace(dataset, notes=[*dataset.notes, *labels])


def check_columns(name: str, roles: Sequence[str], columns: Mapping[str, str]) -> None:
    """Raise UsageError for column roles that the task does not have."""
    for role in columns:
        if role not in roles:
            known = ", ".join(roles) or "none that can be named"
            raise UsageError(f"The columns of {name} are {known}, not {role!r}.")


def _options(task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the settings of a task, each to its type."""
    for name in given:
        if not task.options:
            raise UsageError(f"The task {task.name} has no settings; remove task.{name}.")
        if name not in task.options:
            raise unknown_setting(f"task.{name}", [f"task.{known}" for known in task.options])
    return {
        name: parse_value(f"task.{name}", value, task.options[name])
        for name, value in given.items()
    }


def _without_dev_set(task: Task, dataset: TaskDataset, seed: int, where: str) -> TaskDataset:
    """Hold out examples; if they are few, cross-validate; if too few, evaluate on all of them."""
    examples, metadata = dataset.train, dataset.metadata
    many, labels = len(examples) >= MIN_HELD_OUT * MAX_HELD_OUT_PARTS, task.strata(examples)
    folds = [] if many or len(examples) < 2 * FOLDS else stratified_folds(labels, FOLDS, seed)
    if many:
        train, held_out = _held_out(task, examples, seed)
        stratified = ", stratified by label" if metadata.labels else ""
        note = (
            f"{len(held_out):,} of the {len(examples):,} examples are held out{stratified}, and "
            "metrics are computed on them."
        )
        dataset = replace(dataset, train=train, dev=held_out, evaluated_on="held-out examples")
    elif folds and all(_has_two_labels(task, _except(examples, fold)) for fold in folds):
        note = (
            f"{len(examples):,} examples are too few to hold out {MIN_HELD_OUT}, so metrics are "
            f"computed by {FOLDS}-fold cross-validation: each example is predicted by a model "
            "trained on the other folds. The saved model is trained on all examples."
        )
        dataset = replace(dataset, evaluated_on="cross-validation", folds=folds)
    else:
        note = (
            f"{where} has too few examples to hold some out or to cross-validate, so metrics are "
            "computed on the training examples and say nothing about other texts."
        )
        dataset = replace(dataset, dev=examples, evaluated_on="training examples")
    return replace(dataset, notes=[*dataset.notes, f"There is no dev set: {note}"])


def _except(examples: Sequence[Example], places: Sequence[int]) -> list[Example]:
    left_out = set(places)
    return [example for i, example in enumerate(examples) if i not in left_out]


def _has_two_labels(task: Task, examples: Sequence[Example]) -> bool:
    if not task.label_unit:
        return True
    return len({label for example in examples for label in task.labels(example)}) > 1


def split_fold(dataset: TaskDataset, fold: Sequence[int]) -> TaskDataset:
    """Return the dataset whose dev examples are those of a fold."""
    dev = [dataset.train[i] for i in fold]
    return replace(dataset, train=_except(dataset.train, fold), dev=dev, notes=[])


def _held_out(
    task: Task, examples: list[Example], seed: int
) -> tuple[list[Example], list[Example]]:
    """Split the examples into those to train on and those held out."""
    wanted = max(MIN_HELD_OUT, round(HELD_OUT_FRACTION * len(examples)))
    count = min(MAX_HELD_OUT, wanted)
    held_out, rest = stratified_sample(task.strata(examples), count=count, seed=seed, leave=1)
    if not held_out:  # all labels differ
        held_out, rest = stratified_sample([None] * len(examples), count=count, seed=seed)
    return [examples[i] for i in rest], [examples[i] for i in held_out]


def _labels_seen(
    task: Task, examples: Sequence[Example], metadata: TaskMetadata, where: str, balance: bool
) -> list[str]:
    """Raise InputError if there is only one label; warn about imbalanced labels."""
    if not task.label_unit:
        return []
    counts = Counter(label for example in examples for label in task.labels(example))
    if not counts:
        raise InputError(f"No training example in {where} has a label.")
    if metadata.label_type != "many" and len(counts) < 2:
        raise InputError(
            f"All {counts.total():,} training {task.label_unit} in {where} have the label "
            f"{next(iter(counts))!r}; at least two labels are needed."
        )
    if task.label_unit == "words" or metadata.label_type == "number":
        return []
    most, least = max(counts.values()), min(counts.values())
    if most < IMBALANCE * least:
        return []
    fractions = ", ".join(
        f"{label} {count / len(examples):.1%}" for label, count in counts.most_common(8)
    )
    advice = "; they are weighted equally" if balance else "; --balance weights them equally"
    advice = advice if metadata.label_type == "one" else ""
    return [f"The labels are imbalanced ({fractions}){advice}."]


def balanced_label_weights(
    task: Task, examples: Sequence[Example], metadata: TaskMetadata
) -> dict[int, float]:
    """Compute label weights inversely proportional to frequency, with mean 1 over examples.

    >>> from firth.tasks.classify import ClassifyTask
    >>> from firth.tasks.readers.examples import LabelledExample
    >>> rows = [LabelledExample(text="", label=label) for label in "xxxy"]
    >>> metadata = TaskMetadata(task="classify", labels=("x", "y"))
    >>> balanced_label_weights(ClassifyTask(), rows, metadata)
    {0: 0.6666666666666666, 1: 2.0}
    """
    if metadata.label_type != "one" or task.label_unit != "examples":
        raise UsageError(
            "--balance is for tasks with one label per example, such as classify and pair."
        )
    counts = Counter(example.label for example in examples)
    return {
        id: len(examples) / (len(counts) * counts[label])
        for id, label in enumerate(metadata.labels)
        if counts[label]
    }


def with_label_weights(batch: Batch, weights: Mapping[int, float]) -> Batch:
    """Weight the loss of each example in a batch by its label."""
    wanted = batch.predictions["label"]
    label_weights = np.array([weights[int(id)] for id in wanted.targets])
    return replace(batch, predictions={"label": replace(wanted, weights=label_weights)})


def epoch_order(count: int, seed: int, epoch: int) -> Longs:
    """The shuffled order of examples in an epoch.

    >>> sorted(epoch_order(4, seed=0, epoch=1).tolist())
    [0, 1, 2, 3]
    """
    keys = derive_keys(derive_key(seed, epoch), np.arange(count))
    return np.argsort(uniform(keys, ORDER), kind="stable")


def finetune_batches(
    task: Task,
    items: Sequence[EncodedExample],
    metadata: TaskMetadata,
    config: ModelConfig,
    settings: FinetuneTrainingConfig,
    weights: Mapping[int, float] | None = None,
    replay: Callable[[int], Batch] | None = None,
) -> Callable[[TrainingState, Callable[[TrainingState], float]], Iterator[PlannedBatch]]:
    """Make a planner of training batches; with `replay`, some steps are on replayed text."""
    size, count = settings.batch_size, len(items)

    def make(chosen: Longs, after: SamplerPosition, planned_tokens: int) -> PlannedBatch:
        batch = task.batch([items[i] for i in chosen], metadata, config)
        return PlannedBatch(
            with_label_weights(batch, weights) if weights else batch, after, planned_tokens
        )

    def make_replayed(step: int, after: SamplerPosition, planned_tokens: int) -> PlannedBatch:
        assert replay is not None
        return PlannedBatch(replay(step), after, planned_tokens, is_replay=True)

    def jobs(state: TrainingState) -> Iterator[Callable[[], PlannedBatch]]:
        step, (epoch, place), planned_tokens = state.step, state.position, state.planned_tokens
        while True:
            step += 1
            if replay is not None and step % (settings.replay_every + 1) == 0:
                yield partial(make_replayed, step, SamplerPosition(epoch, place), planned_tokens)
                continue
            order = epoch_order(count, settings.seed, epoch)
            chosen = order[place : place + size]
            place += len(chosen)
            if place >= count:
                epoch, place = epoch + 1, 0
            planned_tokens += sum(items[i].size for i in chosen)
            yield partial(make, chosen, SamplerPosition(epoch, place), planned_tokens)

    return lambda state, progress: in_order(jobs(state))
