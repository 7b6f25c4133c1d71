"""Training and validation of a model on a task."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from firth.adapt.apply import AppliedStrategy, apply
from firth.adapt.freeze import layer_groups, unfreeze_from
from firth.adapt.lora import base_dtype, frozen_matrices
from firth.adapt.registry import parse_strategy
from firth.data.memory import Source
from firth.formats.safetensors import open_weights, write_weights
from firth.inference.batching import batch_by_length
from firth.models.initialization import initialise
from firth.models.language_model import LanguageNetwork
from firth.models.task_specific.bag_of_words import BagOfWords
from firth.tasks import diagnostics
from firth.tasks.augmentation import augment, num_copies
from firth.tasks.bag_of_words import solve_bag_of_words
from firth.tasks.batched_inference import batched_outputs
from firth.tasks.dataset import TaskDataset, balanced_label_weights, finetune_batches
from firth.tasks.finetune_config import FinetuneRunConfig
from firth.tasks.finetune_recipes import RECIPES
from firth.tasks.inputs import InputTemplate, make_input_template, task_tokenizer
from firth.tasks.linear_probe import solve_head
from firth.tasks.registry import task_named
from firth.tasks.replay import TextReplay
from firth.tasks.task import Answer, EncodedExample, Task, TaskMetadata, selection_metric
from firth.tasks.task_heads import PROBE, attach_head
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import FinetuneTrainingConfig
from firth.training.distributed.ranks import current_ranks, wait_for_all
from firth.training.loop import Callbacks
from firth.training.losses import INFERENCE_BATCH_TOKENS, TrainingModule, mean_losses
from firth.training.runtime import autocast
from firth.training.state import TrainingState
from firth.utils.devices import device_spec
from firth.utils.errors import UsageError

BEST = "best.safetensors"  # the weights with the best dev metric so far
SOLVED = ("probe", "probe-then-full")  # strategies whose head is fitted by scikit-learn
LOSS_WEIGHTS = {"begin": 0.5, "end": 0.5}  # of the two losses of an answer span


@dataclass
class TaskTrainer:
    """Network, data, strategy and config of a fine-tuning run."""

    task: Task
    metadata: TaskMetadata
    settings: FinetuneTrainingConfig
    template: InputTemplate
    train: list[EncodedExample]
    dev: list[Any]
    dev_items: list[EncodedExample]  # the dev examples, tokenized
    trainee: TrainingModule
    adapted: AppliedStrategy
    heads: list[str]  # that are trained
    replay: TextReplay | None
    replay_loss: float  # on the replayed text before training
    weights: dict[int, float] | None  # label -> weight of its loss
    solved: bool  # the head is at its optimum and nothing else is trained
    validate_first: bool  # validate at step 0: the head is fitted, or the recipe asks for it
    solve_seconds: float  # spent on fitting the head
    notes: list[str]
    selects: bool = True  # the dev examples select the best weights
    dev_outputs: list[Any] | None = None  # of the dev examples, if cross-validation computed them
    warnings: list[str] = field(default_factory=list)  # during training

    @property
    def network(self) -> LanguageNetwork:
        """The network that is trained."""
        return self.trainee.network

    def frozen_matrices(self) -> AbstractContextManager[None]:
        """Return a context in which the frozen matrices have the dtype for training."""
        options, spec = self.adapted.strategy.options, device_spec(self.trainee.device)
        return frozen_matrices(self.network, base_dtype(options, self.settings.precision, spec))

    @property
    def plan(self) -> Any:
        """The planner of training batches."""
        replay = self.replay.batch if self.replay is not None else None
        config = self.network.config
        return finetune_batches(
            self.task, self.train, self.metadata, config, self.settings, self.weights, replay
        )

    # ---- validation

    @torch.no_grad()
    def answers(self) -> list[Answer]:
        """Predict the dev examples."""
        return self.task.answers(self.dev, self.dev_items, self.outputs(), self.metadata)

    @torch.no_grad()
    def outputs(self) -> list[Any]:
        """Compute the network's outputs for the dev examples."""
        if self.dev_outputs is not None:
            return self.dev_outputs
        with autocast(self.settings, self.trainee.device):
            return batched_outputs(self.task, self.network, self.dev_items, self.metadata)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Compute loss and metrics on the dev examples, without intervals."""
        task, metadata = self.task, self.metadata
        with autocast(self.settings, self.trainee.device):
            if task.metric == "loss":
                return dict(mean_losses(self.trainee, self._batches(self.dev_items)))
            outputs = batched_outputs(task, self.network, self.dev_items, metadata)
            loss = self._loss(outputs)
        answers = task.answers(self.dev, self.dev_items, outputs, metadata)
        metrics = task.metrics(self.dev, answers, metadata)
        return {"loss": loss, **{name: metric.value for name, metric in metrics.items()}}

    def _loss(self, outputs: Sequence[Any]) -> float:
        """Compute the dev loss; with label weights, the mean of the labels' mean losses."""
        parts: dict[Any, list[int]] = {}
        for i, item in enumerate(self.dev_items):
            parts.setdefault(item.target if self.weights else None, []).append(i)
        losses = []
        for part in parts.values():
            items = [self.dev_items[i] for i in part]
            loss = None
            if not self.network.config.label_crf:  # its loss is that of whole sentences
                loss = self.task.loss(items, [outputs[i] for i in part], self.metadata)
            if loss is None:
                loss = mean_losses(self.trainee, self._batches(items))["loss"]
            losses.append(loss)
        return fmean(losses)

    def _batches(self, items: Sequence[EncodedExample]) -> Any:
        for chosen in batch_by_length([(item.size,) for item in items]):
            batch = self.task.batch([items[i] for i in chosen], self.metadata, self.network.config)
            yield from batch.split(INFERENCE_BATCH_TOKENS)

    def constant_loss(self) -> float | None:
        """The dev loss of the best constant prediction; None if unknown.

        Labels of equal weight are all equally good guesses.
        """
        guess = self.task.constant_loss(self.dev, self.metadata)
        if self.weights is None or guess is None:
            return guess
        return math.log(len({item.target for item in self.dev_items}))

    def score(self, metrics: Mapping[str, Any]) -> float:
        """The value, higher is better, that selects the best weights."""
        best = selection_metric(self.task, self.metadata, metrics, balance=self.weights is not None)
        return -float(metrics["loss"]) if best == "loss" else float(metrics[best])

    # ---- training

    def callbacks(self, out: Path, given: Callbacks) -> Callbacks:
        """Add validation, selection of the best weights and unfreezing to `given`."""

        def improved() -> None:
            self.save_best(out)
            given.on_improvement()

        def unfreeze(state: TrainingState) -> None:
            self._unfreeze_next(state)
            given.before_step(state)

        own = given
        if self.selects:
            own = replace(given, validate=self.validate, score=self.score, on_improvement=improved)
        return replace(own, before_step=unfreeze) if self._is_gradual else own

    @property
    def _is_gradual(self) -> bool:
        return self.adapted.strategy.name == "gradual"

    def _unfreeze_next(self, state: TrainingState) -> None:
        """Gradual unfreezing (ULMFiT): the head first, then one more group of layers per epoch.

        With few epochs, groups are unfrozen faster: all are trained from half-way on.
        """
        done = self.settings.progress(state.step, state.planned_tokens, state.seconds)
        count = unfrozen_groups(done, state.position.epoch, len(layer_groups(self.network)))
        unfreeze_from(self.network, count, self.heads)
        _make_trainable(self.adapted, self.adapted.unfrozen)

    def save_best(self, out: Path) -> None:
        """Save the current weights as the best."""
        if not current_ranks().is_main:
            return
        try:
            write_weights(out / BEST, {n: p.detach() for n, p in self.trainable().items()})
        except OSError:  # disk full: the next checkpoint reports it as well
            (out / BEST).unlink(missing_ok=True)  # an older file is not the best
            self.warnings.append("The disk was full: the weights of the best validation are lost.")

    def load_best(self, out: Path) -> None:
        """Load the best weights, if there are any; afterwards the network is in eval mode."""
        self.network.eval()
        wait_for_all()  # for the main rank's file
        if not (out / BEST).is_file():
            return
        kept = open_weights(out / BEST, verify=True)
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                parameter.copy_(kept[name])

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that a run may change."""
        if self._is_gradual:
            tops = tuple(f"heads.{head}." for head in self.heads)
            own = self.network.named_parameters()
            return {n: p for n, p in own if n.startswith(tops) or not n.startswith("heads.")}
        return self.adapted.parameters


def _make_trainable(adapted: AppliedStrategy, names: Sequence[str]) -> AppliedStrategy:
    """Train these parameters of the network in addition to the strategy's own."""
    for name in names:
        adapted.network.get_parameter(name).requires_grad_(True)
    adapted.unfrozen = tuple(dict.fromkeys([*adapted.unfrozen, *names]))
    return adapted


def unfrozen_groups(progress: float, epoch: int, groups: int) -> int:
    """The number of unfrozen layer groups: one more per epoch, all from half-way on.

    >>> unfrozen_groups(0.3, epoch=1, groups=13), unfrozen_groups(0.3, epoch=9, groups=13)
    (7, 9)
    """
    return max(epoch, int(2 * progress * groups))


def build_task_trainer(
    config: FinetuneRunConfig,
    network: LanguageNetwork,
    tokenizer: Tokenizer,
    dataset: TaskDataset,
    replay: Source | None,
    encoder_tokenizer: Tokenizer | None = None,
    new_parameters: Sequence[str] = (),
) -> TaskTrainer:
    """Attach the head, tokenize the examples and apply the fine-tuning strategy.

    `encoder_tokenizer` is for an encoder with its own; `new_parameters`, which are randomly
    initialized, are trained with every strategy.
    """
    task, settings, metadata = task_named(config.task), config.training, config.metadata
    kind, recipe = config.strategy.partition(":")[0], RECIPES.get(config.recipe)
    named = parse_strategy("full" if kind == "probe-then-full" else config.strategy)
    weights = balanced_label_weights(task, dataset.train, metadata) if config.balance else None
    shaped = {"layers", "norm", "bias"} & set(config.head)
    layer = named.options.layer if named.name == "probe" else None
    is_linear = kind in SOLVED and bool(task.label_unit) and not shaped
    solves = is_linear and layer != "mix"
    if config.scratch and "masked" in config.augment:
        raise UsageError("--augment masked needs a pre-trained language model: remove --scratch.")
    options = (PROBE if is_linear else {}) | config.head
    heads = attach_head(network, task.head, metadata, options, settings.seed, layer)
    if config.scratch:
        initialise(network, settings.seed)
    network.eval()
    template = make_input_template(
        network.config,
        task_tokenizer(network.config, tokenizer, task.head),
        metadata.max_length,
        encoder_tokenizer,
    )
    text = TextReplay(replay, template, settings.batch_size, settings.seed) if replay else None
    replay_loss = text.loss(network) if text is not None else 0.0
    train = augment(dataset.train, config.augment, network, tokenizer, settings.seed)
    items, dev_items = (
        task.encode(examples, template, metadata) for examples in (train, dataset.dev)
    )
    labelled, source = items[: len(items) // num_copies(config.augment)], template.source
    notes = [*dataset.notes, *diagnostics.check_inputs(labelled, source.tokenizer, source.config)]
    begun = time.monotonic()
    if solves and isinstance(network, BagOfWords):
        notes.append(solve_bag_of_words(task, network, items, metadata, weights))
    elif solves:
        notes.append(solve_head(task, network, items, metadata, len(labelled), weights))
    elif kind in SOLVED:
        notes.append(
            "This head cannot be fitted in closed form: it is trained by gradient descent."
        )
    solve_seconds = time.monotonic() - begun
    adapted = _make_trainable(
        apply(network, named, heads=heads, seed=settings.seed), new_parameters
    )
    if named.name == "gradual":  # the optimizer needs all parameters; each step freezes some
        unfreeze_from(network, len(layer_groups(network)), heads)
    return TaskTrainer(
        task=task,
        metadata=metadata,
        settings=settings,
        template=template,
        train=items,
        dev=dataset.dev,
        dev_items=dev_items,
        trainee=TrainingModule(network, weights=LOSS_WEIGHTS),
        adapted=adapted,
        heads=heads,
        replay=text,
        replay_loss=replay_loss,
        weights=weights,
        solved=solves and kind == "probe",
        validate_first=solves or (recipe is not None and recipe.validate_first),
        solve_seconds=solve_seconds,
        selects=not dataset.folds,
        notes=notes,
    )
