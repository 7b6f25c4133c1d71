"""Fine-tuning: a pre-trained model and labelled examples in, a model for the task out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, cast, overload

import torch

from firth.adapt.apply import AppliedStrategy, without_adapters
from firth.adapt.saving import adapter_base, fingerprint, save_adapter
from firth.data.memory import Data
from firth.jobs.cross_validation import cross_validate
from firth.jobs.dry_run import DryRunResult, estimate_cost
from firth.jobs.finetune_setup import FinetuneSetup, joining_note, set_up
from firth.jobs.job_configs import FinetuneConfig
from firth.jobs.selection import dev_hashes
from firth.jobs.ulmfit import (
    check_general_text,
    classifier_job,
    language_model_job,
    language_model_values,
    pretrain_general,
)
from firth.metrics.bootstrap import Metric, metrics_to_json
from firth.model import JOINED, AnyModel, Model
from firth.models.label_heads import predicts_labels
from firth.models.transformer import Transformer
from firth.models.word_embedding import trained_layer_mix
from firth.tasks import diagnostics
from firth.tasks.augmentation import num_copies
from firth.tasks.dataset import TaskDataset
from firth.tasks.finetune_config import FinetuneRunConfig
from firth.tasks.finetune_recipes import recipe_for
from firth.tasks.inputs import task_tokenizer
from firth.tasks.task_heads import drop_language_head
from firth.tasks.task_trainer import BEST, TaskTrainer
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.distributed.process_group import on_all_ranks
from firth.training.distributed.ranks import current_ranks
from firth.training.log import Callback, show_in_notebook
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.run import Run, describe_run, open_run
from firth.training.run_directory import (
    GENERAL_LANGUAGE_MODEL,
    IN_MEMORY,
    LANGUAGE_MODEL,
    check_run_directory,
    find_run,
    saved_bytes,
)
from firth.training.runtime import peak_memory
from firth.utils.arguments import check_arguments
from firth.utils.devices import Device, restored_torch_state
from firth.utils.errors import UsageError
from firth.utils.notebook import HtmlRepr
from firth.utils.plotting import plot_loss

FOLDS = "cross-validation"  # a temporary directory in that of the run


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
    layer_mix: dict[str, Any] = field(default_factory=dict)  # weights of the layers (ELMo), gamma
    fitted_language_model: dict[str, Any] = field(default_factory=dict)  # ULMFiT's stage before
    evaluated_on: str = "dev set"  # or held-out examples, cross-validation, training examples
    language_head: torch.nn.Module | None = None  # after training; a model with labels drops it

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
            **self.layer_mix,
            **({"language_model": stage} if (stage := self.fitted_language_model) else {}),
        }


P = ParamSpec("P")


class _Finetune(Protocol[P]):
    """The type of `finetune`: with `dry_run=True`, the result is another one."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, model: AnyModel, *, dry_run: Literal[True], **options: Any
    ) -> DryRunResult: ...

    @overload
    def __call__(self, *arguments: P.args, **options: P.kwargs) -> FinetuneResult: ...


def _with_types(function: Callable[P, FinetuneResult | DryRunResult]) -> _Finetune[P]:
    return cast(_Finetune[P], function)


@_with_types
@check_arguments
@on_all_ranks
@restored_torch_state()
def finetune(
    model: AnyModel,
    *,
    task: str,
    train: Data,
    out: str | Path | None = None,
    dev: Data | None = None,
    decoder: AnyModel | None = None,
    vectors: AnyModel | None = None,
    general_text: Data | None = None,
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
    parallel: str | None = None,
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
    dry_run: bool = False,
    device: Device = None,
    callback: Callback = show_in_notebook,
    callbacks: Callbacks | None = None,
) -> FinetuneResult | DryRunResult:
    """Fine-tune a model on labelled examples of a task, and save the run in `out`.

    Examples are a file, a list of rows (dicts, or tuples of a text and its label), or a table of
    pandas, pyarrow or datasets; without `dev`, some of `train` are held out. A `Model` is copied.
    Bad rows are skipped and noted; with `strict`, they are an error. Options that are None are
    those of the recipe. `overrides` sets any other field of the training config ("schedule"), the
    head ("head.layers") or the task ("task.prefix"). With a `decoder`, the model is an encoder
    joined to it (Rothe et al. 2020). With `scratch` and a `tokenizer`, the model is a preset. A
    task-specific model ("cnn", "bilstm-crf") is trained from random weights, on words of `train`;
    its embeddings may be `vectors`. With the recipe "ulmfit", a preset is pre-trained on
    `general_text` first. With `dry_run`, nothing is written: the result has parameters, memory,
    steps and time of the run with this strategy, several ("full lora") or, without one, all.
    """
    given = locals()
    job = FinetuneConfig(**{each.name: given[each.name] for each in fields(FinetuneConfig)})
    if dry_run:
        return estimate_cost(job)
    if out is None:
        raise UsageError("`out` is missing: the run directory to write, a string or Path.")
    folder, callbacks = Path(out), callbacks or Callbacks()
    if not (stage := recipe_for(task, recipe)[1].language_model):
        if general_text is not None:
            raise UsageError("--general-text is for --recipe ulmfit: omit it.")
        return _train(job, folder, callback, callbacks)
    general, before = folder / GENERAL_LANGUAGE_MODEL, folder / LANGUAGE_MODEL
    if check_general_text(job):
        if not (resume and find_run(general).get("finished")):
            pretrain_general(job, general, callback, callbacks)
        job = replace(job, model=general, general_text=None)
    if not (resume and find_run(before).get("finished")):
        _train(language_model_job(job, stage), before, callback, callbacks)
    done = language_model_values(before)
    return _train(classifier_job(job, before), folder, callback, callbacks, done)


def _train(
    job: FinetuneConfig,
    out: Path,
    callback: Callback,
    callbacks: Callbacks,
    language_model: dict[str, Any] | None = None,
) -> FinetuneResult:
    """Train a model and save the run; `language_model` describes an earlier stage of it."""
    setup = set_up(job)
    config, dataset = setup.config, setup.dataset
    described = _describe(setup)
    check_run_directory(out, described, job.resume)
    trainer = setup.trainer(setup.base, config, dataset)
    if setup.decoder is not None:
        trainer.notes.append(joining_note(trainer.network))
    trainer.notes.extend(setup.notes)
    speed = lambda tokens, seconds: {"memory": peak_memory(setup.device)}  # noqa: E731

    def train_fold(part: TaskDataset, name: str) -> TaskTrainer:
        """Train a new copy of the model on a part of the data, in a temporary directory."""
        folder, fresh = out / FOLDS, setup.load_base(part)
        own = replace(config, training=setup.training_config(part))
        fold = setup.trainer(fresh, own, part)
        _remove(folder)  # of a run that was killed
        show = lambda kind, metrics: callback(kind, {**metrics, "run": name})  # noqa: E731
        with open_run(
            folder, own.training, described, resume=False, callback=show, speed=speed
        ) as run:
            _fit(fold, run, Callbacks())
        _remove(folder)
        return fold

    with open_run(
        out, config.training, described, resume=job.resume, callback=callback, speed=speed
    ) as run:
        loop = _fit(trainer, run, callbacks)
        if dataset.folds:
            run.log.validation(loop.state, cross_validate(trainer, dataset, train_fold))
        return _finish(
            config, setup.base, trainer, loop, run, dataset.evaluated_on, language_model or {}
        )


def _remove(folder: Path) -> None:
    if current_ranks().is_main:
        shutil.rmtree(folder, ignore_errors=True)


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


def _describe(setup: FinetuneSetup) -> dict[str, Any]:
    """Describe the run for `run.json`."""
    models = {"model": setup.base, "decoder": setup.decoder}
    parents = {name: m.path for name, m in models.items() if m is not None and m.path is not None}
    described = describe_run("finetuning", setup.config.to_dict(), setup.sources, parents)
    for name, model in models.items():
        if model is not None and model.path is None:
            sums = {"path": model.source or IN_MEMORY, "sha256": fingerprint(model.network)}
            described["parents"][name] = sums
    return described | {"task": setup.config.metadata.to_dict()}


def _save(model: Model, adapted: AppliedStrategy, out: Path, base: Model, *, new: bool) -> str:
    """Save the whole model, or only the adapter if the base model is unchanged."""
    # The base model is not on disk yet if it was given in memory, or merged with an adapter.
    new = new or base.path is None or adapter_base(base.path) is not None
    whole = new or adapted.strategy.name != "probe" or not isinstance(model.network, Transformer)
    if adapted.strategy.row.inject is None and whole:
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
    language_model: dict[str, Any],
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
    if (mix := trained_layer_mix(trainer.network)) is not None:
        new_notes.append(mix.summary())
    for note in new_notes:
        run.log.note(note)
    notes = [*trainer.notes, *new_notes]
    heads = dict(trainer.network.heads.items())
    drop_language_head(trainer.network)
    labelled = len(trainer.train) // num_copies(config.augment)
    tokenizer = base.tokenizer
    if tokenizer is not None and predicts_labels(trainer.network):
        tokenizer = task_tokenizer(trainer.network.config, tokenizer, trainer.task.head)
    model = Model(
        trainer.network,
        tokenizer,
        out,
        task=metadata,
        encoder_tokenizer=base.encoder_tokenizer,
        generation_config=base.generation_config,
    )
    family, is_main = "", current_ranks().is_main
    if is_main:
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
        saved_bytes=saved_bytes(out) + saved_bytes(out / JOINED),
        family=family,
        notes=notes,
        selected_on=selected,
        layer_mix=mix.values() if mix is not None else {},
        evaluated_on=evaluated_on,
        fitted_language_model=language_model,
        language_head=heads.get("language"),
    )
    if not is_main:
        return result
    if validations and not trainer.solved:  # a fitted head has no loss curve
        plot_loss(out / "loss.png", {config.task: metrics}, unigram_loss=baseline or 0.0)
    hashes = dev_hashes(trainer.dev)
    run.finish(result.values(), task=metadata.to_dict(), dev_hashes=hashes)
    (out / BEST).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return result
