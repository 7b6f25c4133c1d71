"""The parts of a fine-tuning run before anything is trained: models, examples and config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from firth.data.memory import Source, as_source
from firth.jobs.job_configs import FinetuneConfig
from firth.jobs.parent_models import load_float32, merge_adapters, untrained_model
from firth.jobs.run_options import merge_options
from firth.jobs.task_models import find_task_model, untrained_task_model
from firth.model import Model
from firth.models.encoder_decoder import cross_attention_names, join
from firth.models.ngram.model import NO_HIDDEN_STATES
from firth.tasks.augmentation import num_copies
from firth.tasks.dataset import TaskDataset, load_dataset
from firth.tasks.finetune_config import FinetuneRunConfig
from firth.tasks.finetune_recipes import (
    finetune_training_config,
    frozen_blocks,
    num_virtual_tokens,
    recipe_for,
    sequence_length,
    task_model_recipe,
)
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import TASKS, task_named
from firth.tasks.task import Task
from firth.tasks.task_trainer import TaskTrainer, build_task_trainer
from firth.training.config import FinetuneTrainingConfig, group_overrides
from firth.training.pretrain_config import move_own_settings
from firth.training.run_directory import IN_MEMORY
from firth.training.runtime import reset_peak_memory
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.devices import device_spec, select_device
from firth.utils.errors import MismatchError, UsageError

# Arguments of `finetune` that are fields of the training config.
OPTIONS = (
    *("learning_rate", "epochs", "batch_size", "max_length", "warmup", "weight_decay"),
    *("precision", "parallel"),
)


@dataclass(frozen=True)
class FinetuneSetup:
    """The models, examples and config of a fine-tuning run."""

    base: Model
    decoder: Model | None  # joined to the base
    sources: dict[str, Source]  # train, dev, replay
    dataset: TaskDataset
    config: FinetuneRunConfig
    training_config: Callable[[TaskDataset], FinetuneTrainingConfig]
    device: torch.device
    load_base: Callable[[TaskDataset], Model]  # a new copy of the base, for a part of the data
    notes: list[str]  # on the base

    def trainer(self, base: Model, config: FinetuneRunConfig, dataset: TaskDataset) -> TaskTrainer:
        """Apply the strategy to a model that `load_models` returned, and tokenize the examples."""
        new = cross_attention_names(base.network) if self.decoder is not None else ()
        return build_task_trainer(
            config,
            base.network.to(self.device),
            base.require_tokenizer(),
            dataset,
            self.sources.get("replay"),
            base.require_encoder_tokenizer(),
            new,
        )


def set_up(job: FinetuneConfig, dataset: TaskDataset | None = None) -> FinetuneSetup:
    """Load the models and the examples, unless given, and resolve the config of the run."""
    device, task = select_device(job.device), task_named(job.task)
    reset_peak_memory(device)
    given = merge_options(job.overrides, {name: getattr(job, name) for name in OPTIONS})
    groups = group_overrides(given, ("head", "task", "model"))
    row = find_task_model(job)
    if row is None:
        base, decoder = load_models(job)
        shape, (name, recipe) = base.config, recipe_for(job.task, job.recipe)
        _check_no_model_settings(groups["model"])
    else:
        decoder, shape = None, row.config
        move_own_settings(groups, row.config)
        name, recipe = str(job.model), task_model_recipe(row, job.task)
        job = replace(job, scratch=False)  # it is already, and would lose its vectors
    frozen = frozen_blocks(recipe, shape)
    strategy = job.strategy or recipe.strategy or (f"freeze:{frozen}" if frozen else "full")
    length = sequence_length(recipe, shape, groups["training"], num_virtual_tokens(strategy))
    sources = _sources(job, task)
    if dataset is None:
        dataset = _read(job, task, sources, length, groups["task"])
    else:
        dataset = replace(dataset, metadata=replace(dataset.metadata, max_length=length))
    notes: list[str] = []
    if row is not None:
        base, notes = untrained_task_model(job, row, dataset, groups["model"])
        _check_joins(task, base, job.decoder is not None)

    def load_base(part: TaskDataset) -> Model:
        if row is None:
            return load_models(job)[0]
        return untrained_task_model(job, row, part, groups["model"])[0]

    def training_config(dataset: TaskDataset) -> FinetuneTrainingConfig:
        return finetune_training_config(
            recipe,
            base.config,
            len(dataset.train) * num_copies(job.augment),
            strategy=strategy,
            device=device_spec(device),
            scratch=job.scratch,
            replay=job.replay is not None,
            overrides={"seed": job.seed, **groups["training"]},
        )

    config = FinetuneRunConfig(
        model=str(base.path or base.source or IN_MEMORY),
        task=job.task,
        recipe=name,
        strategy=strategy,
        training=training_config(dataset),
        metadata=dataset.metadata,
        head={**recipe.head, **groups["head"]},
        columns=dict(job.columns or {}),
        limit=job.limit,
        balance=job.balance,
        augment=job.augment,
        scratch=job.scratch,
        decoder=str(decoder.path or IN_MEMORY) if decoder is not None else None,
        vectors=str(job.vectors) if job.vectors is not None else None,
        network=groups["model"],
    )
    return FinetuneSetup(
        base, decoder, sources, dataset, config, training_config, device, load_base, notes
    )


def _check_no_model_settings(overrides: Mapping[str, Any]) -> None:
    """Raise UsageError for settings of a network that is not built anew."""
    for name in overrides:
        raise UsageError(f"model.{name} cannot be set: the model is already trained.")


def _sources(job: FinetuneConfig, task: Task) -> dict[str, Source]:
    """Return the files or tables of the run."""
    return {
        name: as_source(data, name, "text" if name == "replay" else task.columns)
        for name, data in (("train", job.train), ("dev", job.dev), ("replay", job.replay))
        if data is not None or name == "train"
    }


def _read(
    job: FinetuneConfig,
    task: Task,
    sources: dict[str, Source],
    length: int,
    options: dict[str, Any],
) -> TaskDataset:
    """Read the examples."""
    bad = BadRows(SKIPPED, strict=job.strict)
    read = partial(TaskFile, format=job.format, columns=job.columns or {}, bad=bad)
    with bad.explaining():
        dataset = load_dataset(
            task,
            read(sources["train"]),
            read(sources["dev"]) if "dev" in sources else None,
            limit=job.limit,
            seed=job.seed,
            max_length=length,
            options=options,
            balance=job.balance,
        )
    dataset.notes.extend(bad.notes)
    return dataset


def load_models(job: FinetuneConfig) -> tuple[Model, Model | None]:
    """Load the model to train, joined to a decoder if one is given, and that decoder."""
    task, model = task_named(job.task), job.model
    if job.tokenizer is not None:
        model = untrained_model(model, job.tokenizer, scratch=job.scratch, seed=job.seed)
    base = load_float32(model)
    if not base.config.hidden_size:
        raise MismatchError(f"{NO_HIDDEN_STATES}.")
    decoder_model = load_float32(job.decoder) if job.decoder is not None else None
    _check_joins(task, base, decoder_model is not None)
    for parent in (base, decoder_model):
        if parent is not None:
            merge_adapters(parent)
    if decoder_model is not None:
        base = _joined(base, decoder_model, job.seed)
    if base.config.architecture not in task.architectures:
        raise task.unsupported_architecture(base.config.architecture)
    return base, decoder_model


def _check_joins(task: Task, base: Model, joins: bool) -> None:
    """Raise an error if the task does not support a model with two tokenizers."""
    able = ", ".join(name for name, other in TASKS.items() if other.needs_encoder_decoder)
    if joins and not task.needs_encoder_decoder:
        raise UsageError(f"--decoder is for {able}, not for {task.name}.")
    if base.config.encoder is not None and not task.needs_encoder_decoder:
        raise MismatchError(
            f"{base.source} has two tokenizers: it can be fine-tuned on {able}, not on {task.name}."
        )


def _joined(encoder: Model, decoder: Model, seed: int) -> Model:
    """Join an encoder and a decoder to one model."""
    try:
        network = join(encoder.transformer, decoder.transformer, seed)
    except MismatchError as error:
        raise MismatchError(
            f"{encoder.source} and {decoder.source} cannot be joined. {error}"
        ) from error
    return replace(
        encoder,
        network=network,
        tokenizer=decoder.require_tokenizer(),
        encoder_tokenizer=encoder.require_tokenizer(),
        sentence_encoder=None,
        task=None,
    )


def joining_note(network: torch.nn.Module) -> str:
    new = sum(network.get_parameter(name).numel() for name in cross_attention_names(network))
    return (
        f"{new:,} cross-attention parameters are new and trained with every strategy; Hugging Face "
        "transformers has no such architecture, so only firth.load opens the model."
    )
