"""A model at work on a task: network, head and strategy put together, and how well it does."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from firth.adapt.adapted import Adapted, apply
from firth.adapt.freeze import groups, unfreeze_from
from firth.adapt.table import strategy as strategy_named
from firth.errors import Misuse
from firth.models.formats.weights import open_weights, write_weights
from firth.models.initial import initialise
from firth.models.transformer import Transformer
from firth.tasks import cautions
from firth.tasks.augment import augment, copies
from firth.tasks.frame import Frame, make_frame
from firth.tasks.heads import PROBE, with_head
from firth.tasks.job import TuningJob
from firth.tasks.material import Material, balanced, tuning_planner
from firth.tasks.probing import is_solvable, solve_head
from firth.tasks.replay import Replay
from firth.tasks.running import in_batches, outputs
from firth.tasks.table import task_named
from firth.tasks.task import Answer, Facts, Item, Task, judged_by
from firth.text.tokenizer import Tokenizer
from firth.training.loop import Hooks
from firth.training.losses import AT_ONCE, Trainee, mean_losses
from firth.training.machine import autocast
from firth.training.settings import TuningSettings
from firth.training.state import State

BEST = "best.safetensors"  # the weights of the best validation, while a run goes on
SOLVED = ("probe", "probe-then-full")
WEIGHTS = {"begin": 0.5, "end": 0.5}  # of the two losses of an answer


@dataclass
class Work:
    """Everything a run works with."""

    task: Task
    facts: Facts
    settings: TuningSettings
    frame: Frame
    train: list[Item]
    dev: list[Any]
    held: list[Item]  # the dev examples in tokens
    trainee: Trainee
    adapted: Adapted
    heads: list[str]  # that learn
    replay: Replay | None
    known: float  # loss on the text to remember, before
    weights: dict[int, float] | None  # of the labels
    solved: bool  # nothing is left to learn
    ready: bool  # it does the task before it learns
    solving: float  # seconds that the head's optimum took
    notes: list[str]
    mishaps: list[str] = field(default_factory=list)  # while it learned

    @property
    def network(self) -> Transformer:
        """The network that learns."""
        return self.trainee.network

    @property
    def plan(self) -> Any:
        """Which batches come next."""
        again = self.replay.batch if self.replay is not None else None
        config = self.network.config
        return tuning_planner(
            self.task, self.train, self.facts, config, self.settings, self.weights, again
        )

    # ---- how well it does

    @torch.no_grad()
    def answers(self) -> list[Answer]:
        """What the network says of the dev examples."""
        with autocast(self.settings, self.trainee.device):
            said = outputs(self.task, self.network, self.held, self.facts)
        return self.task.answers(self.dev, self.held, said, self.facts, self.frame)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """A loss and the figures on the dev examples, without intervals."""
        task, facts = self.task, self.facts
        with autocast(self.settings, self.trainee.device):
            if task.metric == "loss":
                return dict(mean_losses(self.trainee, self._batches(self.held)))
            said = outputs(task, self.network, self.held, facts)
            loss = self._loss(said)
        answers = task.answers(self.dev, self.held, said, facts, self.frame)
        figures = task.figures(self.dev, answers, facts)
        return {"loss": loss, **{name: figure.value for name, figure in figures.items()}}

    def _loss(self, said: Sequence[Any]) -> float:
        """The loss on the dev examples; where labels count alike, the mean of their own losses."""
        parts: dict[Any, list[int]] = {}
        for i, item in enumerate(self.held):
            parts.setdefault(item.target if self.weights else None, []).append(i)
        losses = []
        for part in parts.values():
            items = [self.held[i] for i in part]
            loss = self.task.loss(items, [said[i] for i in part], self.facts)
            if loss is None:
                loss = mean_losses(self.trainee, self._batches(items))["loss"]
            losses.append(loss)
        return fmean(losses)

    def _batches(self, items: Sequence[Item]) -> Any:
        for chosen in in_batches(items):
            batch = self.task.batch([items[i] for i in chosen], self.facts, self.network.config)
            yield from batch.split(AT_ONCE)

    def constant_loss(self) -> float | None:
        """The loss of saying the same of every dev example; None where it is not known.

        Of labels that count alike, none is a better guess than another.
        """
        guess = self.task.constant_loss(self.dev, self.facts)
        if self.weights is None or guess is None:
            return guess
        return math.log(len({item.target for item in self.held}))

    def worth(self, figures: Mapping[str, Any]) -> float:
        """By which the best validation is chosen."""
        best = judged_by(self.task, self.facts, figures, balance=self.weights is not None)
        return -float(figures["loss"]) if best == "loss" else float(figures[best])

    # ---- the best so far

    def hooks(self, out: Path, given: Hooks) -> Hooks:
        """What happens while it learns."""
        own = replace(
            given, validate=self.validate, worth=self.worth, better=partial(self.keep, out)
        )
        if self.adapted.strategy.name == "gradual":
            return replace(own, before_step=self._thaw)
        return own

    def _thaw(self, state: State) -> None:
        """ULMFiT: the head alone, then one group of layers more in each epoch.

        Where the epochs are few, groups are opened faster: half way through, everything learns.
        """
        done = self.settings.progress(state.step, state.asked, state.seconds)
        count = thawed(done, state.position.epoch, len(groups(self.network)))
        unfreeze_from(self.network, count, self.heads)
        _also_learning(self.adapted, self.adapted.opened)

    def keep(self, out: Path) -> None:
        """Remember the weights as they are now."""
        try:
            write_weights(out / BEST, {n: p.detach() for n, p in self.learned().items()})
        except OSError:  # a full disk: the checkpoint will say so, too
            (out / BEST).unlink(missing_ok=True)  # those of an earlier validation are not the best
            self.mishaps.append("The disk was full: the weights of the best validation are lost.")

    def recall(self, out: Path) -> None:
        """Take the best weights back."""
        if not (out / BEST).is_file():
            return
        kept = open_weights(out / BEST)
        with torch.no_grad():
            for name, parameter in self.learned().items():
                parameter.copy_(kept[name])

    def learned(self) -> dict[str, torch.nn.Parameter]:
        """What a run may change."""
        if self.adapted.strategy.name == "gradual":
            tops = tuple(f"heads.{head}." for head in self.heads)
            own = self.network.named_parameters()
            return {n: p for n, p in own if n.startswith(tops) or not n.startswith("heads.")}
        return self.adapted.parameters


def _also_learning(adapted: Adapted, names: Sequence[str]) -> Adapted:
    """Let some parameters of the network itself learn, whatever else does."""
    for name in names:
        adapted.network.get_parameter(name).requires_grad_(True)
    adapted.opened = tuple(dict.fromkeys([*adapted.opened, *names]))
    return adapted


def thawed(progress: float, epoch: int, there: int) -> int:
    """How many groups of layers learn by now: one more in each epoch, all of them half way through.

    >>> thawed(0.3, epoch=1, there=13), thawed(0.3, epoch=9, there=13)
    (7, 9)
    """
    return max(epoch, int(2 * progress * there))


def set_to_work(
    job: TuningJob,
    network: Transformer,
    tokenizer: Tokenizer,
    material: Material,
    replay: str | Path | None,
    reader: Tokenizer | None = None,
    fresh: Sequence[str] = (),
) -> Work:
    """Put a head on a network, choose what learns, and turn the examples into tokens.

    `reader` is the tokenizer of an encoder that has its own; `fresh`, parameters that no one has
    trained yet, learn with every strategy.
    """
    task, settings, facts = task_named(job.task), job.settings, job.facts
    kind = job.strategy.partition(":")[0]
    named = strategy_named("full" if kind == "probe-then-full" else job.strategy)
    weights = balanced(task, material.train, facts) if job.balance else None
    shaped = {"layers", "norm", "bias"} & set(job.head)
    solves = kind in SOLVED and is_solvable(task) and not shaped
    if job.scratch and "masked" in job.augment:
        raise Misuse("A network that begins from nothing can guess no words: --augment masked.")
    options = (PROBE if solves else {}) | job.head
    heads = with_head(network, task.head, facts, options, settings.seed)
    if job.scratch:
        initialise(network, settings.seed)
    network.eval()
    frame = make_frame(network.config, tokenizer, facts.length, reader)
    text = Replay(replay, frame, int(settings.batch), settings.seed) if replay else None
    known = text.loss(network) if text is not None else 0.0
    train = augment(material.train, job.augment, network, tokenizer, settings.seed)
    items, held = (task.encode(examples, frame, facts) for examples in (train, material.dev))
    labelled, source = items[: len(items) // copies(job.augment)], frame.source
    notes = [*material.notes, *cautions.of_text(labelled, source.tokenizer, source.config)]
    begun = time.monotonic()
    if solves:
        notes.append(solve_head(task, network, items, facts, len(labelled), weights))
    elif kind in SOLVED:
        notes.append("This head has no optimum that can be solved for: it is learned step by step.")
    solving = time.monotonic() - begun
    adapted = _also_learning(apply(network, named, heads=heads, seed=settings.seed), fresh)
    if named.name == "gradual":  # everything will learn, and a step begins with what does by then
        unfreeze_from(network, len(groups(network)), heads)
    return Work(
        task=task,
        facts=facts,
        settings=settings,
        frame=frame,
        train=items,
        dev=material.dev,
        held=held,
        trainee=Trainee(network, weights=WEIGHTS),
        adapted=adapted,
        heads=heads,
        replay=text,
        known=known,
        weights=weights,
        solved=solves and kind == "probe",
        ready=solves,
        solving=solving,
        notes=notes,
    )
