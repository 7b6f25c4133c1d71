"""Fine-tuning: a pre-trained model and labelled examples in, a model for the task out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from firth.adapt.apply import AppliedStrategy, get_adapters, merge, remove, without_adapters
from firth.adapt.saving import adapter_base, fingerprint, save_adapter
from firth.data.memory import Data, Source, as_source
from firth.jobs.cross_validation import cross_validate
from firth.jobs.parent_models import IN_MEMORY, load_float32, untrained_model
from firth.jobs.run_options import merge_options
from firth.jobs.selection import dev_hashes
from firth.metrics.bootstrap import Metric, metrics_to_json
from firth.model import JOINED, AnyModel, Model
from firth.models.encoder_decoder import cross_attention_names, join
from firth.tasks import diagnostics
from firth.tasks.augmentation import num_copies
from firth.tasks.dataset import TaskDataset, load_dataset
from firth.tasks.finetune_config import FinetuneRunConfig
from firth.tasks.finetune_recipes import (
    finetune_training_config,
    frozen_blocks,
    num_virtual_tokens,
    recipe_for,
    sequence_length,
)
from firth.tasks.readers.columns import TaskFile
from firth.tasks.registry import TASKS, task_named
from firth.tasks.task import Task
from firth.tasks.task_heads import drop_language_head
from firth.tasks.task_trainer import BEST, TaskTrainer, build_task_trainer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.config import group_overrides
from firth.training.log import Callback, show_in_notebook
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.run import Run, describe_run, open_run
from firth.training.run_directory import check_run_directory
from firth.training.runtime import peak_memory, reset_peak_memory
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.devices import Device, device_spec, restored_torch_state, select_device
from firth.utils.errors import MismatchError, UsageError
from firth.utils.notebook import HtmlRepr
from firth.utils.plotting import plot_loss

FOLDS = "cross-validation"  # a temporary directory in that of the run
WEIGHT_FILES = ("*model*.safetensors", "adapter.safetensors", f"{JOINED}/*.safetensors")


@dataclass(frozen=True)
class FinetuneResult(HtmlRepr):
    """The result of a fine-tuning run."""

    path: Path
    model: Model
    config: FinetuneRunConfig
    metrics: dict[str, Metric]  # on the examples of `evaluated_on`
    examples: tuple[int, int]  # numbers of train and dev examples
    variants: int  # added by augmentation
    trainable_parameters: int
    steps: int
    seconds: float
    device: str  # type: cpu or cuda
    memory: int  # peak bytes; on the CPU, of the whole process
    saved_bytes: int  # of the weights on disk
    family: str
    notes: list[str] = field(default_factory=list)
    selected_on: list[str] = field(default_factory=list)  # what the dev examples selected
    evaluated_on: str = "dev set"  # or held-out examples, cross-validation, training examples

    def __repr__(self) -> str:
        found = list(self.metrics.items())[:3]
        metrics = ", ".join(f"{name} {metric.value:.4f}" for name, metric in found)
        parts = f"{self.config.task}, {self.config.strategy}, {self.steps:,} steps"
        return f"FinetuneResult({self.path}, {parts}, {metrics} on {self.evaluated_on})"

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        parameters = self.model.num_parameters
        return {
            "out": str(self.path),
            "task": self.config.task,
            "strategy": self.config.strategy,
            "n": self.examples[1],
            "train": self.examples[0],
            "variants": self.variants,
            "metrics": metrics_to_json(self.metrics),
            "evaluated_on": self.evaluated_on,
            "selected_on": self.selected_on,
            "parameters": parameters,
            "trainable_parameters": self.trainable_parameters,
            "trainable_fraction": self.trainable_parameters / max(1, parameters),
            "steps": self.steps,
            "seconds": self.seconds,
            "memory": self.memory,
            "saved_bytes": self.saved_bytes,
            "family": self.family,
            "notes": self.notes,
        }


@check_arguments
@restored_torch_state()
def finetune(
    model: AnyModel,
    *,
    task: str,
    train: Data,
    out: str | Path,
    dev: Data | None = None,
    decoder: AnyModel | None = None,
    strategy: str = "",
    recipe: str | None = None,
    limit: int = 0,
    seed: int = 0,
    learning_rate: float | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    warmup: float | None = None,
    weight_decay: float | None = None,
    precision: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    format: str | None = None,
    strict: bool = False,
    balance: bool = False,
    augment: str = "",
    replay: Data | None = None,
    scratch: bool = False,
    tokenizer: str | Path | Tokenizer | Model | None = None,
    resume: bool = False,
    device: Device = None,
    callback: Callback = show_in_notebook,
    callbacks: Callbacks | None = None,
) -> FinetuneResult:
    """Fine-tune a model on labelled examples of a task, and save the run in `out`.

    Examples are a file, a list of rows (dicts, or tuples of a text and its label), or a table of
    pandas, pyarrow or datasets; without `dev`, some of `train` are held out. A `Model` is copied.
    Bad rows are skipped and noted; with `strict`, they are an error. Options that are None are
    those of the recipe. `overrides` sets any other field of the training config ("schedule"), the
    head ("head.layers") or the task ("task.prefix"). With a `decoder`, the model is an encoder
    joined to it (Rothe et al. 2020). With `scratch` and a `tokenizer`, the model is a preset.
    """
    options = {
        "learning_rate": learning_rate,
        "epochs": epochs,
        "batch_size": batch_size,
        "max_length": max_length,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "precision": precision,
    }
    out, on, chosen = Path(out), select_device(device), task_named(task)
    reset_peak_memory(on)
    if tokenizer is not None:
        model = untrained_model(model, tokenizer, scratch=scratch, seed=seed)
    base, decoder_model = _load_models(chosen, model, decoder, seed)
    groups = group_overrides(merge_options(overrides, options), ("head", "task"))
    name, row = recipe_for(task, recipe)
    frozen = frozen_blocks(row, base.config)
    spec = strategy or (f"freeze:{frozen}" if frozen else "full")
    length = sequence_length(row, base.config, groups["training"], taken=num_virtual_tokens(spec))
    sources = {
        name: as_source(data, name, "text" if name == "replay" else chosen.columns)
        for name, data in (("train", train), ("dev", dev), ("replay", replay))
        if data is not None or name == "train"
    }
    bad = BadRows(SKIPPED, strict=strict)
    read = partial(TaskFile, format=format, columns=columns or {}, bad=bad)
    with bad.explaining():
        dataset = load_dataset(
            chosen,
            read(sources["train"]),
            read(sources["dev"]) if "dev" in sources else None,
            limit=limit,
            seed=seed,
            max_length=length,
            options=groups["task"],
            balance=balance,
        )
    dataset.notes.extend(bad.notes)
    plan = partial(
        finetune_training_config,
        row,
        base.config,
        strategy=spec,
        device=device_spec(on),
        scratch=scratch,
        replay=replay is not None,
        overrides={"seed": seed, **groups["training"]},
    )
    settings = plan(len(dataset.train) * num_copies(augment))
    config = FinetuneRunConfig(
        model=str(base.path or base.source or IN_MEMORY),
        task=task,
        recipe=name,
        strategy=spec,
        training=settings,
        metadata=dataset.metadata,
        head=groups["head"],
        columns=dict(columns or {}),
        limit=limit,
        balance=balance,
        augment=augment,
        scratch=scratch,
        decoder=str(decoder_model.path or IN_MEMORY) if decoder_model is not None else None,
    )
    described = _describe(config, base, decoder_model, sources)
    check_run_directory(out, described, resume)
    new_parameters = cross_attention_names(base.network) if decoder_model is not None else ()
    encoder_tokenizer, base_tokenizer = base.require_encoder_tokenizer(), base.require_tokenizer()
    text = sources.get("replay")
    trainer = build_task_trainer(
        config,
        base.network.to(on),
        base_tokenizer,
        dataset,
        text,
        encoder_tokenizer,
        new_parameters,
    )
    if decoder_model is not None:
        trainer.notes.append(_joining_note(trainer.network))
    speed = lambda tokens, seconds: {"memory": peak_memory(on)}  # noqa: E731

    def train_fold(part: TaskDataset, name: str) -> TaskTrainer:
        """Train a new copy of the model on a part of the data, in a temporary directory."""
        folder, fresh = out / FOLDS, _load_models(chosen, model, decoder, seed)[0]
        own = replace(config, training=plan(len(part.train) * num_copies(augment)))
        fold = build_task_trainer(
            own, fresh.network.to(on), base_tokenizer, part, text, encoder_tokenizer, new_parameters
        )
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        show = lambda kind, metrics: callback(kind, {**metrics, "run": name})  # noqa: E731
        with open_run(
            folder, own.training, described, resume=False, callback=show, speed=speed
        ) as run:
            _fit(fold, run, Callbacks())
        shutil.rmtree(folder, ignore_errors=True)
        return fold

    with open_run(out, settings, described, resume=resume, callback=callback, speed=speed) as run:
        loop = _fit(trainer, run, callbacks or Callbacks())
        if dataset.folds:
            run.log.validation(loop.state, cross_validate(trainer, dataset, train_fold))
        return _finish(config, base, trainer, loop, run, dataset.evaluated_on)


def _fit(trainer: TaskTrainer, run: Run, callbacks: Callbacks) -> TrainingLoop:
    """Train a network and load its best weights."""
    own = trainer.callbacks(run.path, callbacks)
    with trainer.frozen_matrices():
        loop = run.training_loop(trainer.trainee, trainer.plan, own, trainer.notes)
        if trainer.validate_first and loop.state.best_score == -math.inf:
            loop.validate()  # training may make it worse
        if not trainer.solved:
            loop.fit()
    trainer.load_best(run.path)
    return loop


def _load_models(
    task: Task, model: AnyModel, decoder: AnyModel | None, seed: int
) -> tuple[Model, Model | None]:
    """Load the model to train, joined to a decoder if one is given, and that decoder."""
    base = load_float32(model)
    decoder_model = load_float32(decoder) if decoder is not None else None
    _check_joins(task, base, decoder_model)
    for parent in (base, decoder_model):
        if parent is not None:
            _merge_adapters(parent)
    if decoder_model is not None:
        base = _joined(base, decoder_model, seed)
    if base.config.architecture not in task.architectures:
        raise task.unsupported_architecture(base.config.architecture)
    return base, decoder_model


def _check_joins(task: Task, base: Model, decoder_model: Model | None) -> None:
    """Raise an error if the task does not support a model with two tokenizers."""
    able = ", ".join(name for name, other in TASKS.items() if other.needs_encoder_decoder)
    if decoder_model is not None and not task.needs_encoder_decoder:
        raise UsageError(f"--decoder is for {able}, not for {task.name}.")
    if base.config.encoder is not None and not task.needs_encoder_decoder:
        raise MismatchError(
            f"{base.source} has two tokenizers: it can be fine-tuned on {able}, not on {task.name}."
        )


def _merge_adapters(model: Model) -> None:
    """Merge the adapter of a model into its weights, so that it can be trained further."""
    network = model.network
    for name, adapted in list(get_adapters(network).items()):
        if not adapted.modules:  # a head alone
            remove(network, name)
            network.config = adapted.config
            network.heads.update(adapted.heads)
    if not get_adapters(network):
        return
    try:
        merge(network, keep=False)
    except UsageError as error:
        raise MismatchError(
            f"{model.source} is an adapter that cannot be merged for more training. {error}"
        ) from error


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


def _joining_note(network: torch.nn.Module) -> str:
    new = sum(network.get_parameter(name).numel() for name in cross_attention_names(network))
    return (
        f"{new:,} cross-attention parameters are new and trained with every strategy; Hugging Face "
        "transformers has no such architecture, so only firth.load opens the model."
    )


def _describe(
    config: FinetuneRunConfig,
    base: Model,
    decoder: Model | None,
    data: Mapping[str, Source],
) -> dict[str, Any]:
    """Describe the run for `run.json`."""
    models = {"model": base, "decoder": decoder}
    parents = {name: m.path for name, m in models.items() if m is not None and m.path is not None}
    described = describe_run("finetuning", config.to_dict(), data, parents)
    for name, model in models.items():
        if model is not None and model.path is None:
            sums = {"path": model.source or IN_MEMORY, "sha256": fingerprint(model.transformer)}
            described["parents"][name] = sums
    return described | {"task": config.metadata.to_dict()}


def _save(model: Model, adapted: AppliedStrategy, out: Path, base: Model, *, new: bool) -> str:
    """Save the whole model, or only the adapter if the base model is unchanged."""
    # The base model is not on disk yet if it was given in memory, or merged with an adapter.
    new = new or base.path is None or adapter_base(base.path) is not None
    if adapted.strategy.row.inject is None and (new or adapted.strategy.name != "probe"):
        return model.write(out)
    if new:
        replace(model, network=without_adapters(model.transformer)).write(out / JOINED)
    on_disk = base.source is None or Path(base.source).exists()
    named = str(base.path.resolve()) if on_disk and base.path else str(base.source)
    saved = save_adapter(adapted, out, base=JOINED if new else named)
    return f"adapter in {'PEFT' if saved.layout == 'peft' else 'Firth'}'s layout"


def _finish(
    config: FinetuneRunConfig,
    base: Model,
    trainer: TaskTrainer,
    loop: TrainingLoop,
    run: Run,
    evaluated_on: str,
) -> FinetuneResult:
    """Save the model, its metrics with intervals, the loss curve and the model card."""
    out, metrics = run.path, run.metrics()
    validations = [line for line in metrics if line["kind"] == "validation"]
    baseline = trainer.constant_loss()
    losses = [line["loss"] for line in validations if "loss" in line]
    new_notes = [*trainer.warnings, *loop.stopped_early]
    if not trainer.solved and evaluated_on != "training examples":
        new_notes += diagnostics.check_training(loop.state.history, losses, baseline)
    if trainer.replay is not None:
        new_notes.append(
            diagnostics.forgetting_note(trainer.replay_loss, trainer.replay.loss(trainer.network))
        )
    selected = ["checkpoint"] if trainer.selects and len(validations) > 1 else []
    answers = trainer.answers()
    metadata = trainer.task.calibrate(trainer.metadata, trainer.dev, answers)
    if metadata != trainer.metadata:
        trainer.metadata = metadata
        answers = trainer.answers()
        selected.append("threshold")
    new_notes += diagnostics.check_answers(trainer.task, trainer.dev, answers)
    for note in new_notes:
        run.log.note(note)
    notes = [*trainer.notes, *new_notes]
    drop_language_head(trainer.network)
    labelled = len(trainer.train) // num_copies(config.augment)
    model = Model(
        trainer.network,
        base.tokenizer,
        out,
        task=metadata,
        encoder_tokenizer=base.encoder_tokenizer,
        generation_config=base.generation_config,
    )
    family = _save(model, trainer.adapted, out, base, new=config.decoder is not None)
    result = FinetuneResult(
        path=out,
        model=model,
        config=config,
        metrics=trainer.task.metrics(trainer.dev, answers, metadata),
        examples=(labelled, len(trainer.dev)),
        variants=len(trainer.train) - labelled,
        trainable_parameters=sum(parameter.numel() for parameter in trainer.trainable().values()),
        steps=loop.state.step,
        seconds=loop.state.seconds + trainer.solve_seconds,
        device=trainer.trainee.device.type,
        memory=peak_memory(trainer.trainee.device),
        saved_bytes=sum(file.stat().st_size for name in WEIGHT_FILES for file in out.glob(name)),
        family=family,
        notes=notes,
        selected_on=selected,
        evaluated_on=evaluated_on,
    )
    if validations and not trainer.solved:  # a fitted head has no loss curve
        plot_loss(out / "loss.png", {config.task: metrics}, unigram_loss=baseline or 0.0)
    hashes = dev_hashes(trainer.dev)
    run.finish(result.values(), task=metadata.to_dict(), dev_hashes=hashes)
    (out / BEST).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return result
