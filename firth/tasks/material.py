"""What a model is adapted with: examples read, held out, sampled, encoded, and put in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from firth.draws import Longs, derive, derive_one, uniform
from firth.errors import InputError, Misuse
from firth.models.config import ModelConfig
from firth.objectives.batch import Batch
from firth.tasks.sampling import overlap, stratified
from firth.tasks.task import Example, Facts, Item, Task
from firth.text.batches import Position, in_order
from firth.training.loop import Planned, State
from firth.training.settings import TuningSettings

HELD_OUT = 0.1  # of the training data, where there are no others to validate on
MOST_HELD_OUT = 1000
ORDER = 60  # what is drawn: the order of an epoch
UNEVEN = 4.0  # times as many of the commonest label as of the rarest: worth a word


@dataclass(frozen=True)
class Material:
    """The examples, what must be known of them, and what a person should know."""

    train: list[Example]
    dev: list[Example]
    facts: Facts
    notes: list[str]


def gather(
    task: Task,
    train: str | Path,
    dev: str | Path | None,
    *,
    limit: int,
    seed: int,
    length: int,
    columns: Mapping[str, str],
    options: Mapping[str, Any],
    facts: Facts | None = None,
) -> Material:
    """Read the files; hold out a part of the training data where there is no dev file."""
    _check_columns(task, columns)
    examples, notes = task.read(train, columns=columns), []
    if not examples:
        raise InputError(f"{train} holds no examples.")
    facts = facts or task.facts(examples, length, options)
    if dev is not None:
        held = task.read(dev, columns=columns)
        if not held:
            raise InputError(f"{dev} holds no examples.")
        task.check(facts, held, Path(dev))
        if same := overlap(examples, held):
            notes.append(
                f"{same:,} of the {len(held):,} examples in {dev} stand in {train} as well: "
                "figures on them say too much."
            )
    if limit:
        chosen, _ = stratified(task.strata(examples), count=limit, seed=seed)
        examples = [examples[i] for i in chosen]
    if dev is None:
        examples, held = _held_out(task, examples, seed)
        notes.append(
            f"There is no dev file: {len(held):,} of the {len(held) + len(examples):,} examples "
            "are held out, in the shares their labels have."
        )
    return Material(examples, held, facts, [*notes, *_labels_seen(task, examples, facts, train)])


def _check_columns(task: Task, columns: Mapping[str, str]) -> None:
    for role in columns:
        if role not in task.roles:
            known = ", ".join(task.roles) or "none that can be named"
            raise Misuse(f"The columns of {task.name} are {known}, not {role!r}.")


def _held_out(
    task: Task, examples: list[Example], seed: int
) -> tuple[list[Example], list[Example]]:
    if len(examples) < 2:
        raise InputError("One example cannot both be learned and be held out; give more.")
    count = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(examples))))
    held, rest = stratified(task.strata(examples), count=count, seed=seed, leave=1)
    return [examples[i] for i in rest], [examples[i] for i in held]


def _labels_seen(
    task: Task, examples: Sequence[Example], facts: Facts, path: str | Path
) -> list[str]:
    """Labels that are all the same end the run; those that are very uneven are named."""
    if task.head != "classify" or facts.labelling == "number":
        return []
    counts = Counter(label for example in examples for label in _as_tuple(example.label))
    if facts.labelling == "one" and len(counts) < 2:
        raise InputError(
            f"All {len(examples):,} examples of {path} have the label {next(iter(counts))!r}: "
            "there is nothing to tell apart."
        )
    most, least = max(counts.values()), min(counts.values())
    if most < UNEVEN * least:
        return []
    shares = ", ".join(
        f"{label} {count / len(examples):.1%}" for label, count in counts.most_common(8)
    )
    return [f"The labels are uneven ({shares}); --balance weighs them alike."]


def _as_tuple(label: Any) -> tuple[str, ...]:
    return label if isinstance(label, tuple) else (label,)


def balanced(examples: Sequence[Example], facts: Facts) -> dict[int, float]:
    """What each label counts so that all count alike, and one example counts 1 on average.

    >>> from firth.tasks.examples import Labelled
    >>> rows = [Labelled(text="", label=label) for label in "xxxy"]
    >>> balanced(rows, Facts(task="classify", labels=("x", "y")))
    {0: 0.6666666666666666, 1: 2.0}
    """
    if facts.labelling != "one" or not facts.labels:
        raise Misuse("--balance weighs labels of which each example has one.")
    counts = Counter(example.label for example in examples)
    return {
        id: len(examples) / (len(counts) * counts[label])
        for id, label in enumerate(facts.labels)
        if counts[label]
    }


def weighted(batch: Batch, weights: Mapping[int, float]) -> Batch:
    """A batch whose labels count as much as they are told to."""
    wanted = batch.predictions["label"]
    each = np.array([weights[int(id)] for id in wanted.targets])
    return replace(batch, predictions={"label": replace(wanted, weights=each)})


def epoch_order(count: int, seed: int, epoch: int) -> Longs:
    """The order in which an epoch sees its examples.

    >>> sorted(epoch_order(4, seed=0, epoch=1).tolist())
    [0, 1, 2, 3]
    """
    keys = derive(derive_one(seed, epoch), np.arange(count))
    return np.argsort(uniform(keys, ORDER), kind="stable")


def tuning_planner(
    task: Task,
    items: Sequence[Item],
    facts: Facts,
    config: ModelConfig,
    settings: TuningSettings,
    weights: Mapping[int, float] | None = None,
    replay: Callable[[int], Batch] | None = None,
) -> Callable[[State, Callable[[State], float]], Iterator[Planned]]:
    """Which examples come next; with `replay`, every few steps are on a text instead."""
    size, count = int(settings.batch), len(items)

    def make(chosen: Longs, after: Position, asked: int) -> Planned:
        batch = task.batch([items[i] for i in chosen], facts, config)
        return Planned(weighted(batch, weights) if weights else batch, after, asked)

    def jobs(state: State) -> Iterator[Callable[[], Planned]]:
        step, (epoch, place), asked = state.step, state.position, state.asked
        while True:
            step += 1
            if replay is not None and step % (settings.replay + 1) == 0:
                yield partial(_replayed, replay, step, Position(epoch, place), asked)
                continue
            order = epoch_order(count, settings.seed, epoch)
            chosen = order[place : place + size]
            place += len(chosen)
            if place >= count:
                epoch, place = epoch + 1, 0
            asked += sum(items[i].size for i in chosen)
            yield partial(make, chosen, Position(epoch, place), asked)

    return lambda state, progress: in_order(jobs(state))


def _replayed(replay: Callable[[int], Batch], step: int, after: Position, asked: int) -> Planned:
    return Planned(replay(step), after, asked)
