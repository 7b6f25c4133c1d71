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
from firth.tasks.reading.sampling import overlap, stratified
from firth.tasks.task import Example, Facts, Item, Task
from firth.text.batches import Position, in_order
from firth.training.settings import TuningSettings, typed, unknown
from firth.training.state import Planned, State

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
    balance: bool = False,
) -> Material:
    """Read the files; hold out a part of the training data where there is no dev file."""
    check_columns(task.name, task.roles, columns)
    chosen_options = _options(task, options)
    examples, notes = task.read(train, columns=columns), []
    if not examples:
        raise InputError(f"{train} holds no examples.")
    facts = task.facts(examples, length, chosen_options)
    task.check(facts, examples, Path(train))
    if dev is not None:
        held = task.read(dev, columns=columns)
        if not held:
            raise InputError(f"{dev} holds no examples.")
        task.check(facts, held, Path(dev))
    where = f"{train} with --limit {limit}" if 0 < limit < len(examples) else str(train)
    if limit:
        chosen, _ = stratified(task.strata(examples), count=limit, seed=seed)
        examples = [examples[i] for i in chosen]
    if dev is not None and (same := overlap(examples, held)):
        notes.append(
            f"{same:,} of the {len(held):,} examples in {dev} are learned from as well: figures on "
            "them say too much."
        )
    if dev is None:
        examples, held = _held_out(task, examples, seed, where)
        notes.append(
            f"There is no dev file: {len(held):,} of the {len(held) + len(examples):,} examples "
            "are held out" + (", in the shares their labels have." if facts.labels else ".")
        )
    notes += _labels_seen(task, examples, facts, where, balance)
    return Material(examples, held, facts, notes)


def check_columns(name: str, roles: Sequence[str], columns: Mapping[str, str]) -> None:
    """Refuse names for columns that the task of this name does not have."""
    for role in columns:
        if role not in roles:
            known = ", ".join(roles) or "none that can be named"
            raise Misuse(f"The columns of {name} are {known}, not {role!r}.")


def _options(task: Task, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was set of a task, each value of its kind."""
    for name in given:
        if not task.options:
            raise Misuse(f"There is nothing to set of {task.name}, not even {name!r}.")
        if name not in task.options:
            raise unknown(f"task.{name}", [f"task.{known}" for known in task.options])
    return {name: typed(f"task.{name}", value, task.options[name]) for name, value in given.items()}


def _held_out(
    task: Task, examples: list[Example], seed: int, where: str
) -> tuple[list[Example], list[Example]]:
    if len(examples) < 2:
        raise InputError(
            f"{where} has one example, which cannot be learned and held out; add more ({task.name} "
            f"reads: {task.columns})."
        )
    count = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(examples))))
    strata = task.strata(examples)
    held, rest = stratified(strata, count=count, seed=seed, leave=1)
    if not held and all(isinstance(label, str) for label in strata):
        raise InputError(
            f"{where} has every label once: what is held out could not be learned; give a dev "
            "file, or more examples."
        )
    if not held:  # no two examples have the same labels, but each of these may be seen elsewhere
        held, rest = stratified([None] * len(examples), count=count, seed=seed)
    return [examples[i] for i in rest], [examples[i] for i in held]


def _labels_seen(
    task: Task, examples: Sequence[Example], facts: Facts, where: str, balance: bool
) -> list[str]:
    """Labels that are all the same end the run; those that are very uneven are named."""
    if not task.tells_apart:
        return []
    counts = Counter(label for example in examples for label in task.labels(example))
    if not counts:
        raise InputError(f"No example to learn from in {where} has a label.")
    if facts.labelling != "many" and len(counts) < 2:
        raise InputError(
            f"All {counts.total():,} {task.tells_apart} to learn from in {where} have the label "
            f"{next(iter(counts))!r}: there is nothing to tell apart."
        )
    if task.tells_apart == "words" or facts.labelling == "number":
        return []
    most, least = max(counts.values()), min(counts.values())
    if most < UNEVEN * least:
        return []
    shares = ", ".join(
        f"{label} {count / len(examples):.1%}" for label, count in counts.most_common(8)
    )
    cure = "; they are weighed alike" if balance else "; --balance weighs them alike"
    cure = cure if facts.labelling == "one" else ""
    return [f"The labels are uneven ({shares}){cure}."]


def balanced(task: Task, examples: Sequence[Example], facts: Facts) -> dict[int, float]:
    """What each label counts so that all count alike, and one example counts 1 on average.

    >>> from firth.tasks.classify import Classify, Labelled
    >>> rows = [Labelled(text="", label=label) for label in "xxxy"]
    >>> balanced(Classify(), rows, Facts(task="classify", labels=("x", "y")))
    {0: 0.6666666666666666, 1: 2.0}
    """
    if facts.labelling != "one" or task.tells_apart != "examples":
        raise Misuse("--balance weighs labels of which each text has one, as in classify and pair.")
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
    return Planned(replay(step), after, asked, aside=True)
