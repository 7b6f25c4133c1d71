"""The pre-training job: from shards and a preset to a run directory with a trained model."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, Protocol, cast, overload

import torch

from firth.adapt.apply import get_adapters, merge
from firth.data.memory import Data
from firth.data.mixture import resolve_mixture
from firth.data.shards import Shards
from firth.formats.hub import resolve
from firth.formats.huggingface.directory import nameable_heads
from firth.jobs.fitted_pretraining import (
    FitRequest,
    fitted_preset,
    pretrain_fitted,
    resolve_fitted_config,
)
from firth.jobs.pretrain_dry_run import PretrainDryRun, estimate_pretraining
from firth.jobs.pretrain_inputs import (
    as_saved_model,
    find_data,
    inputs_of_accepted_runs,
    prepare_text,
)
from firth.jobs.pretrain_networks import pretraining_heads, run_tokenizer, untrained_generator
from firth.jobs.pretrain_result import PretrainResult
from firth.jobs.pretrain_validation import (
    SOURCE_LOSS,
    risen_advice,
    source_batches,
    source_notes,
    validation_callbacks,
    write_model,
)
from firth.jobs.run_options import check_masking, merge_options
from firth.model import AnyModel, Model, load
from firth.models.initialization import initialise
from firth.models.networks import build_network
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer
from firth.training.data_loader import (
    batch_planner,
    count_tokens,
    first_batch,
    training_sampler,
)
from firth.training.distillation import copy_teacher_weights
from firth.training.distributed.choice import shards_weights
from firth.training.distributed.process_group import on_all_ranks
from firth.training.distributed.ranks import current_ranks
from firth.training.fitted_objectives import FITTED
from firth.training.log import ACCURACY, Callback, show_in_notebook
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.losses import TrainingModule
from firth.training.plateau import unigram_baseline
from firth.training.pretrain_config import (
    ParentModel,
    PretrainRunConfig,
    resolve_pretrain_config,
)
from firth.training.run import Run, describe_run, open_run
from firth.training.run_directory import check_run_directory, find_run
from firth.training.state import TrainingState
from firth.training.throughput import throughput_metrics
from firth.utils.arguments import check_arguments
from firth.utils.devices import (
    Device,
    device_spec,
    dry_run_spec,
    restored_torch_state,
    select_device,
)
from firth.utils.errors import MismatchError, UsageError
from firth.utils.plotting import plot_loss

P = ParamSpec("P")


class _Pretrain(Protocol[P]):
    """The type of `pretrain`: with `dry_run=True`, the result is another one."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, *, dry_run: Literal[True], **options: Any
    ) -> PretrainDryRun: ...

    @overload
    def __call__(self, *arguments: P.args, **options: P.kwargs) -> PretrainResult: ...


def _with_types(function: Callable[P, PretrainResult | PretrainDryRun]) -> _Pretrain[P]:
    return cast(_Pretrain[P], function)


@_with_types
@check_arguments
@on_all_ranks
@restored_torch_state()
def pretrain(
    *,
    preset: str | None = None,
    data: Data,
    tokenizer: str | Path | Tokenizer | Model | None = None,
    mixture: Mapping[str, float] | str | None = None,
    mixture_alpha: float | None = None,
    out: str | Path | None = None,
    objective: str | None = None,
    steps: int = 0,
    tokens: int = 0,
    minutes: float = 0.0,
    source: AnyModel | None = None,
    teacher: AnyModel | None = None,
    seed: int = 0,
    learning_rate: float | None = None,
    batch_tokens: int | str | None = None,
    max_length: int | str | None = None,
    warmup: float | None = None,
    weight_decay: float | None = None,
    optimizer: str | None = None,
    precision: str | None = None,
    parallel: str | None = None,
    mask_prob: float | str | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    dry_run: bool = False,
    world_size: int = 1,
    device: Device = None,
    callback: Callback = show_in_notebook,
    callbacks: Callbacks | None = None,
) -> PretrainResult | PretrainDryRun:
    """Pre-train a language model on the shards of `prepare`, and save the run in `out`.

    With a `tokenizer`, by default that of `source`, `data` may also be text for `prepare`: files, a
    list of texts, a table. The architecture is that of a `preset`, or of `source`, a model to
    continue from. Options that are None are those of the preset's recipe; `max_length`,
    `batch_tokens` and `mask_prob` may be schedules ("64:0.8,256", "0.3-0.15"). `overrides` sets any
    other field of the training config ("schedule"), the model ("model.num_layers") or the objective
    ("objective.noise_density").
    `mixture` ({"en": 0.3, "ha": 0.7}) or `mixture_alpha` decides how often the named sources of the
    shards are sampled. With `dry_run`, nothing is trained: the result has the memory of a rank and
    what it exchanges in a step, for `world_size` ranks.
    """
    options = {
        "learning_rate": learning_rate,
        "batch_tokens": batch_tokens,
        "max_length": max_length,
        "warmup": warmup,
        "weight_decay": weight_decay,
        "optimizer": optimizer,
        "precision": precision,
        "parallel": parallel,
        "objective.mask_prob": mask_prob,
    }
    budget = {"steps": steps, "tokens": tokens, "minutes": minutes}
    others: dict[str, Any] = {"source": source, "teacher": teacher, "callbacks": callbacks}
    others |= {"mixture": mixture, "mixture_alpha": mixture_alpha}
    fitted = fitted_preset(preset, objective, options | budget | others)
    overrides = {"seed": seed, **merge_options(overrides, options)}
    if out is None and not dry_run:
        raise UsageError("`out` is missing: the run directory to write, a string or Path.")
    out = Path(out or ".")
    spec = dry_run_spec(device) if dry_run else device_spec(select_device(device))
    if not resume and not dry_run:
        check_run_directory(out, {}, resume)  # before anything is written
    if world_size != 1 and not dry_run:
        raise UsageError("--world-size is for --dry-run; torchrun starts the ranks of a run.")
    if dry_run and fitted is not None:
        raise UsageError("--dry-run is for models that are trained in steps; this one is fitted.")
    folder, reader = find_data(data, tokenizer, source)
    if dry_run and folder is None:
        raise UsageError(
            "--dry-run needs shards: make them of your text with `firth prepare TEXT --tokenizer "
            "MODEL --out SHARDS`, and give --data SHARDS without --tokenizer."
        )
    if fitted is not None:
        if current_ranks().size > 1:
            raise UsageError(f"{preset} is fitted without optimizer steps: omit torchrun.")
        fitted_config = resolve_fitted_config(fitted, reader, overrides)
        folder, notes = prepare_text(folder, data, reader, out)
        return pretrain_fitted(
            FitRequest(
                config=fitted_config,
                shards=Shards(folder),
                tokenizer=Tokenizer.load(folder),
                out=out,
                resume=resume,
                callback=callback,
                notes=notes,
            )
        )
    with inputs_of_accepted_runs(out):
        source, teacher = (
            as_saved_model(model, name, None if dry_run else out)
            for name, model in {"source": source, "teacher": teacher}.items()
        )
        teacher = teacher and resolve(teacher)
        source_model = None if source is None else _load_source(source, reader)
        parent = None if source_model is None else _parent(source_model)
        config = resolve_pretrain_config(
            preset, objective, reader, budget, overrides, parent, teacher, spec
        )
        if mask_prob is not None:
            check_masking(config.objective)
    # after all settings are checked: it may take hours
    folder, notes = prepare_text(folder, data, reader, out)
    shards, tokenizer = Shards(folder), Tokenizer.load(folder)
    config = replace(config, mixture=resolve_mixture(shards, mixture, mixture_alpha))
    if dry_run:
        sampler = training_sampler(config, shards)
        taught = None if config.teacher is None else _load_teacher(config.teacher, tokenizer)
        return estimate_pretraining(config, sampler, tokenizer, taught, spec, world_size)
    on = select_device(device)
    parents = {
        name: Path(path) for name in ("source", "teacher") if (path := getattr(config, name))
    }
    description = describe_run("pretraining", config.to_dict(), {"shards": shards.path}, parents)
    check_run_directory(out, description, resume)
    sampler = training_sampler(config, shards)
    first = first_batch(config, sampler, tokenizer)  # report wrong options before training
    module = build(config, tokenizer, source_model)
    model = Model(module.network, tokenizer, out, objective=config.objective)
    model.tokenizer = run_tokenizer(config, tokenizer, source_model)
    if source_model is not None:
        model.sentence_encoder = source_model.sentence_encoder
        model.generation_config = source_model.generation_config
        notes += _new_heads(config, module.network, source_model.network)
        del source_model  # free its weights
    speed = throughput_metrics(config, on)
    shards_them = shards_weights(module.network, config.training, on)
    training = replace(config.training, parallel="shard" if shards_them else "replicate")
    with open_run(out, training, description, resume=resume, callback=callback, speed=speed) as run:
        by_source = source_batches(config, shards, tokenizer)
        notes += source_notes(config, shards, by_source)
        if not shards_them:  # else block by block
            module.to(on)
        own = validation_callbacks(
            config, module, model, shards, by_source, callbacks or Callbacks()
        )
        plan = batch_planner(config, sampler, tokenizer)
        documents = map(int, sampler.order(0)) if shards.source_names else range(len(shards))
        counts = count_tokens(shards, len(tokenizer), documents)
        baseline = unigram_baseline(counts, _ordinary_fraction(first, tokenizer))
        loop = run.training_loop(module, plan, own, notes, baseline)
        loop.fit()
        return _finish(config, model, loop, run)


def _load_source(source: str | Path, tokenizer: Tokenizer) -> Model:
    """Load the model to continue from, and merge its adapters."""
    model = load(source)
    if model.objective in FITTED or not model.config.hidden_size:
        raise UsageError(f"{source} was fitted without optimizer steps, and cannot be continued.")
    _check_tokenizer(model, tokenizer, str(source))
    if get_adapters(model.network):
        merge(model.network, keep=False)
    return model


def _load_teacher(path: str, tokenizer: Tokenizer) -> Model:
    model = load(path)
    _check_tokenizer(model, tokenizer, path)
    if "language" not in model.network.heads:
        raise MismatchError(f"{path} has no language head to teach with.")
    return model


def _parent(model: Model) -> ParentModel:
    """Describe the model to continue from; a run of `firth pretrain` has its own preset."""
    assert model.path is not None
    run = find_run(model.path)
    job = run["job"] if run.get("kind") == "pretraining" else {}
    own = {name: value for name, value in job.items() if isinstance(value, str)}
    return ParentModel(
        path=model.path,
        config=model.config,
        preset=own.get("preset"),
        objective=own.get("objective"),
    )


def build(
    config: PretrainRunConfig, tokenizer: Tokenizer, source: Model | None = None
) -> TrainingModule:
    """Build the network, with random weights or those of a source model or teacher."""
    seed = config.training.seed
    heads = pretraining_heads(config.objective, config.preset, config.model)
    network = initialise(build_network(config.model, heads), seed)
    network.read_vocabulary(tokenizer)
    teacher, generator = None, untrained_generator(config)
    if config.source is not None:
        _copy_weights(network, source or _load_source(config.source, tokenizer), config.source)
    if config.teacher is not None:
        teacher = _load_teacher(config.teacher, tokenizer).network
        if config.source is None:
            copy_teacher_weights(network, teacher)
    if generator is not None:
        initialise(generator, seed + 1)
    return TrainingModule(
        network,
        generator=generator,
        teacher=teacher,
        vocabulary=tokenizer.vocabulary,
        weights=config.loss_weights,
    )


def _copy_weights(network: torch.nn.Module, model: Model, path: str) -> None:
    """Copy another model's weights; heads that it lacks keep their random weights."""
    new = _missing(network, model.network)
    if lacking := [name for name in new if not name.startswith("heads.")]:
        raise MismatchError(
            f"{path} has another architecture than this run: {len(lacking)} weights differ, such "
            f"as {lacking[0]}."
        )
    state = model.network.state_dict()
    known = {name: state[name] for name in network.state_dict() if name not in new}
    network.load_state_dict(known, strict=False)


def _missing(network: torch.nn.Module, before: torch.nn.Module) -> list[str]:
    """Return the names of weights that another network does not have in the same shape."""
    state = {name: tensor.shape for name, tensor in before.state_dict().items()}
    return [name for name, own in network.state_dict().items() if state.get(name) != own.shape]


def _new_heads(
    config: PretrainRunConfig, network: torch.nn.Module, before: torch.nn.Module
) -> list[str]:
    """Return a note about heads that the source model lacks, if there are any."""
    heads = [name.split(".")[1] for name in _missing(network, before)]
    if not heads:
        return []
    named, one = " and no ".join(dict.fromkeys(heads)), len(set(heads)) == 1
    return [
        f"{config.source} has no {named} head, which {config.objective!r} needs: "
        f"{'it starts' if one else 'they start'} with random weights."
    ]


def _check_tokenizer(model: Model, tokenizer: Tokenizer, path: str) -> None:
    own = model.tokenizer
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise MismatchError(
            f"{path} has a different tokenizer than the shards; prepare the text with `firth "
            f"prepare --tokenizer {path}`."
        )
    if own is None and model.config.vocab_size != len(tokenizer):
        raise MismatchError(
            f"{path} has {model.config.vocab_size:,} tokens, but the shards' tokenizer has "
            f"{len(tokenizer):,}."
        )


def _finish(
    config: PretrainRunConfig, model: Model, loop: TrainingLoop, run: Run
) -> PretrainResult:
    """Save the model, the loss curve and the model card."""
    for note in loop.stopped_early:
        run.log.note(note)
    out, state, metrics = run.path, loop.state, run.metrics()
    validations = [line for line in metrics if line["kind"] == "validation"]
    final = validations[-1] if validations else {}
    last = {name: value for name, value in final.items() if isinstance(value, float)}
    model.network.eval()
    for head in set(model.network.heads) - set(nameable_heads(config.model, model.network.heads)):
        del model.network.heads[head]
        if head != "boundary":  # SpanBERT's is for training only
            run.log.note(
                f"The head {head!r} is not saved: the architecture has none in transformers. "
                "Presets of BERT, ALBERT (pair) and ELECTRA (replaced) keep it."
            )
    is_main = current_ranks().is_main
    family = write_model(model, out)
    if is_main:
        _compare_with_best(config, state, last.get("loss", math.inf), run)
    result = PretrainResult(
        path=out,
        model=model,
        config=config,
        steps=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        loss=last.get("loss"),
        family=family,
        source_losses={
            name.removeprefix(SOURCE_LOSS): value
            for name, value in last.items()
            if name.startswith(SOURCE_LOSS)
        },
        notes=[line["note"] for line in run.metrics() if line["kind"] == "note"],
    )
    unigram_loss = loop.baseline.loss if loop.baseline is not None else 0.0
    curve, metric = {config.preset: metrics}, _language_loss(metrics)
    if is_main:
        plot_loss(out / "loss.png", curve, unigram_loss=unigram_loss, metric=metric)
    run.finish(result.values() | {"validation": last})
    return result


def _compare_with_best(
    config: PretrainRunConfig, state: TrainingState, loss: float, run: Run
) -> None:
    """Remove the model with the lowest validation loss if it is the final one; else note it."""
    best = run.path / "best"
    if -state.best_score >= loss:
        shutil.rmtree(best, ignore_errors=True)
    elif best.exists():
        repeated = state.position.epoch > 0 or config.mixture is not None
        run.log.note(
            f"The final validation loss, {loss:.3f}, is above the lowest, "
            f"{-state.best_score:.3f}; the model with the lowest is in {best}."
            + risen_advice(-state.best_score, loss, repeated)
        )


def _language_loss(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the loss to compare with the unigram baseline: the first term."""
    terms = (name for line in metrics for name in line if f"{name}{ACCURACY}" in line)
    return next(terms, "loss")


def _ordinary_fraction(batch: Batch, tokenizer: Tokenizer) -> float:
    """Return the fraction of a batch's targets that are not special tokens."""
    targets = next(iter(batch.predictions.values())).targets
    return 1.0 - float(tokenizer.vocabulary.special[targets].mean()) if len(targets) else 1.0
