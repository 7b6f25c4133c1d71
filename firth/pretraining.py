"""Pre-training, told as a story: shards and a preset in, a run directory out."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from firth.adapt.adapted import adapters_on, merge
from firth.drawing import loss_curve
from firth.errors import MismatchError, StorageError, storage_errors
from firth.files import locked, sha256, write_json
from firth.inference.samples import samples
from firth.model import Model, load
from firth.models.config import ModelConfig
from firth.models.flops import measured_peak, training_flops
from firth.models.formats.directory import nameable_heads
from firth.models.formats.hub import resolve
from firth.models.initial import initialise
from firth.models.transformer import Transformer
from firth.objectives.table import OBJECTIVES, fills
from firth.runs import (
    LOCK,
    METRICS,
    RUN,
    announced,
    check_place,
    fingerprint,
    read_metrics,
    read_run,
    versions,
    write_card,
)
from firth.text.batches import Sampler
from firth.text.shards import Shards
from firth.text.tokenizer import Tokenizer
from firth.training.distillation import student_of
from firth.training.flight import RIGHT
from firth.training.job import Job, Origin, plan_job, relative
from firth.training.log import Figures, Listener, Log, tensorboard
from firth.training.loop import Hooks, Loop
from firth.training.losses import Trainee, heads_for, mean_losses
from firth.training.machine import autocast, best_device, memory_used, prepare_network
from firth.training.material import (
    first_batch,
    frequencies,
    options_at,
    planner,
    validation_batches,
)
from firth.training.optim import Optimizer
from firth.training.plateau import guess
from firth.training.schedule import Stages

SAMPLES = 3  # texts that are shown at each validation
SHOWN = 32  # tokens of each


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    path: Path
    model: Model
    job: Job
    steps: int
    tokens: int
    seconds: float
    loss: float | None  # of the last validation
    family: str  # the one the model is written in

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return {
            "out": str(self.path),
            "preset": self.job.preset,
            "objective": self.job.objective,
            "parameters": self.model.parameters,
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": self.loss,
            "family": self.family,
        }


def pretrain(
    *,
    preset: str | None = None,
    data: str | Path,
    out: str | Path,
    objective: str | None = None,
    steps: int = 0,
    tokens: int = 0,
    minutes: float = 0.0,
    source: str | Path | None = None,
    teacher: str | Path | None = None,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    device: str | None = None,
    listener: Listener = lambda kind, figures: None,
    hooks: Hooks | None = None,
) -> Trained:
    """Teach a network a text: `data` are shards that `prepare` made, `out` becomes the run.

    The network is that of a `preset`, or `source`: a model to go on from, which needs no preset.
    `changes` sets single fields: of the settings (`rate`, `length`, …), of the network
    (`model.layers`, …), of the objective (`objective.rate`, …).
    """
    out, on = Path(out), best_device(device)
    shards = Shards(data)
    tokenizer = Tokenizer.load(data)
    teacher = teacher and resolve(teacher)
    first = None if source is None else _opened(source, tokenizer)
    origin = None if first is None else _origin(first)
    budget = {"steps": steps, "tokens": tokens, "minutes": minutes}
    job = plan_job(
        preset, objective, tokenizer, budget, seed, changes or {}, origin, teacher, on.type
    )
    begun = check_place(out, _lineage(job, shards), resume)
    first_batch(job, Sampler(shards, seed), tokenizer)  # what cannot be is said at once
    trainee = build(job, tokenizer, first)
    model = Model(trainee.network, tokenizer, out, objective=job.objective)
    notes: list[str] = []
    if first is not None:
        model.sentence, notes = first.sentence, _new_heads(job, trainee.network, first.network)
        del first  # its weights are no longer needed
    with storage_errors(out, "Free some space or name another place."):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, f"training in {out}"):
        with storage_errors(out, "Free some space or name another place."):
            write_json(out / RUN, begun)
        return _train(job, trainee.to(on), model, shards, resume, listener, hooks, begun, notes)


def _lineage(job: Job, shards: Shards) -> dict[str, Any]:
    """Where a run comes from: `run.json`."""
    parents = {name: path for name in ("source", "teacher") if (path := getattr(job, name))}
    return {
        "kind": "pretraining",
        "finished": False,
        "command": sys.argv,
        "job": job.to_dict(),
        "data": {"path": str(shards.path), "sha256": sha256(shards.path / "index.json")},
        "parents": {
            name: {"path": path, "sha256": fingerprint(Path(path))}
            for name, path in parents.items()
        },
        "versions": versions(),
    }


def _train(
    job: Job,
    trainee: Trainee,
    model: Model,
    shards: Shards,
    resume: bool,
    listener: Listener,
    hooks: Hooks | None,
    begun: dict[str, Any],
    notes: list[str],
) -> Trained:
    device, tokenizer, out = trainee.device, model.tokenizer_needed(), model.path
    assert out is not None
    prepare_network(trainee.network, job.settings)
    optimizer = Optimizer(trainee, job.settings.optimizer)
    speed = _speed(job, device)
    if job.settings.track:
        listener = tensorboard(out / "tensorboard", listener)
    log = Log(out / METRICS, job.settings.log_every, listener, speed)
    if not log.path.exists():  # a run that goes on has said so
        for note in notes:
            log.note(note)
    hooks = _hooks(job, trainee, tokenizer, shards, model, hooks or Hooks())
    hooks = replace(hooks, validate=announced(hooks.validate, listener))
    plan = planner(job, Sampler(shards, job.settings.seed), tokenizer)
    known = guess(frequencies(shards, len(tokenizer)), _ordinary(job, shards, tokenizer))
    loop = Loop(trainee, optimizer, job.settings, plan, out, log, hooks, device=device, guess=known)
    if resume:
        loop.resume()
    loop.fit()
    return _finish(job, model, loop, out, begun)


def _opened(source: str | Path, tokenizer: Tokenizer) -> Model:
    """A model to go on from, with its adapters worked into its weights."""
    model = load(source)
    _check_tokenizer(model, tokenizer, str(source))
    if adapters_on(model.network):
        merge(model.network, keep=False)
    return model


def _origin(model: Model) -> Origin:
    """What a run must know of it; a run of `firth pretrain` knows more of itself."""
    assert model.path is not None
    run = read_run(model.path) if (model.path / RUN).is_file() else {}
    job = run["job"] if run.get("kind") == "pretraining" else {}
    own = {name: value for name, value in job.items() if isinstance(value, str)}
    return Origin(
        path=model.path,
        config=model.config,
        preset=own.get("preset"),
        objective=own.get("objective"),
    )


def build(job: Job, tokenizer: Tokenizer, source: Model | None = None) -> Trainee:
    """The network that learns, from nothing, from another model, or from its teacher."""
    row, seed = OBJECTIVES[job.objective], job.settings.seed
    heads = heads_for(row.predicts)
    if "pair" in heads and "pooler" in relative(job.preset, job.config).heads:
        heads = (*heads, "pooler")
    network = initialise(Transformer(job.config, heads), seed)
    teacher = generator = None
    if job.source is not None:
        _take_over(network, source or _opened(job.source, tokenizer), job.source)
    if job.teacher is not None:
        taught = load(job.teacher)
        _check_tokenizer(taught, tokenizer, job.teacher)
        teacher = taught.network
        if "language" not in teacher.heads:
            raise MismatchError(f"{job.teacher} has no language head to teach with.")
        if job.source is None:
            student_of(network, teacher)
    if "replaced" in row.predicts:
        generator = initialise(Transformer(generator_config(job.config), ["language"]), seed + 1)
    return Trainee(
        network,
        generator=generator,
        teacher=teacher,
        vocabulary=tokenizer.vocabulary,
        weights=job.weights,
    )


def generator_config(config: ModelConfig) -> ModelConfig:
    """ELECTRA's generator: a quarter of the width (Clark et al. 2020, table 6)."""
    heads = max(1, config.heads // 4)
    return replace(
        config,
        width=heads * config.head_width,
        heads=heads,
        kv_heads=heads,
        inner=max(1, config.inner // 4),
        embedding_width=config.table_width,
        trigrams=False,
        bottleneck=0,
        feed_forwards=1,
        head_transform=True,
        tied=True,
        head_bias="trained",
    )


def _take_over(network: Transformer, model: Model, path: str) -> None:
    """Start from another model's weights; a head it does not have stays as drawn."""
    new = _new(network, model.network)
    if lacking := [name for name in new if not name.startswith("heads.")]:
        raise MismatchError(
            f"{path} has another shape than this run asks for: {len(lacking)} weights differ "
            f"({lacking[0]} first)."
        )
    state = model.network.state_dict()
    known = {name: state[name] for name in network.state_dict() if name not in new}
    network.load_state_dict(known, strict=False)


def _new(network: Transformer, before: Transformer) -> list[str]:
    """The weights that another network does not have, or not in this shape."""
    state = {name: tensor.shape for name, tensor in before.state_dict().items()}
    return [name for name, own in network.state_dict().items() if state.get(name) != own.shape]


def _new_heads(job: Job, network: Transformer, before: Transformer) -> list[str]:
    """A sentence about heads that the model a run goes on from lacks, if there are any."""
    heads = [name.split(".")[1] for name in _new(network, before)]
    if not heads:
        return []
    named, one = " and no ".join(dict.fromkeys(heads)), len(set(heads)) == 1
    return [
        f"{job.source} has no {named} head, which {job.objective!r} needs: "
        f"{'a new one is' if one else 'new ones are'} started."
    ]


def _check_tokenizer(model: Model, tokenizer: Tokenizer, path: str) -> None:
    own = model.tokenizer
    if own is not None and own.fingerprint != tokenizer.fingerprint:
        raise MismatchError(
            f"{path} has another tokenizer than the shards; prepare the text with --tokenizer "
            f"{path}."
        )
    if own is None and model.config.vocabulary != len(tokenizer):
        raise MismatchError(
            f"{path} knows {model.config.vocabulary:,} tokens, the shards' tokenizer has "
            f"{len(tokenizer):,}."
        )


def _speed(job: Job, device: torch.device) -> Callable[[int, float], Figures]:
    """What so many tokens in so many seconds mean: share of the machine's best, and memory."""
    dtype = torch.bfloat16 if job.settings.precision == "bf16" else torch.float32
    peak = measured_peak(device, dtype)
    length = Stages.parse(job.settings.length).sizes[0]
    per_token = _flops(job, length)

    def speed(tokens: int, seconds: float) -> Figures:
        used = per_token * tokens / max(seconds, 1e-9) / peak
        return {"mfu": used, "memory": memory_used(device)}

    return speed


def _flops(job: Job, length: int) -> float:
    """The operations that a token of a run takes, as it begins."""
    row = OBJECTIVES[job.objective]
    share = row.share(**options_at(job, 0.0))
    if "replaced" not in row.predicts:
        return training_flops(job.config, 1, length, share)
    generator = training_flops(generator_config(job.config), 1, length, share)
    return generator + training_flops(job.config, 1, length, 0.0)  # which is asked for no tokens


def _hooks(
    job: Job, trainee: Trainee, tokenizer: Tokenizer, shards: Shards, model: Model, hooks: Hooks
) -> Hooks:
    """Validation with a few samples, and the best model kept."""
    if "valid" not in shards.index["splits"]:
        return hooks
    valid = Shards(shards.path, "valid")
    batches = validation_batches(job, valid, tokenizer)
    shown = min(SHOWN, job.config.context // 2)
    texts = [tokenizer.decode(valid[i][:shown].tolist()) for i in range(min(SAMPLES, len(valid)))]

    @torch.no_grad()
    def validate() -> Figures:
        with autocast(job.settings, trainee.device):
            figures: Figures = dict(mean_losses(trainee, batches))
        if not math.isfinite(figures["loss"]):  # then it has nothing to say
            return figures | {"samples": []}
        return figures | {"samples": samples(trainee.network, tokenizer, texts)}

    def better() -> None:
        assert model.path is not None
        try:
            model.save(model.path / "best")
        except StorageError:  # a full disk: the checkpoint will say so
            shutil.rmtree(model.path / "best", ignore_errors=True)  # an earlier one is not the best

    return replace(hooks, validate=validate, better=better)


def _finish(job: Job, model: Model, loop: Loop, out: Path, begun: dict[str, Any]) -> Trained:
    """The run becomes a model: weights, curve, card."""
    for note in loop.stopped_early:
        loop.log.note(note)
    state, metrics = loop.state, read_metrics(out)
    validations = [line for line in metrics if line["kind"] == "validation"]
    final = validations[-1] if validations else {}
    last = {name: value for name, value in final.items() if isinstance(value, float)}
    model.network.eval()
    for head in set(model.network.heads) - set(nameable_heads(job.config, model.network.heads)):
        del model.network.heads[head]  # it only served the learning (SpanBERT's boundary)
    family = model.save(out)
    if -state.best >= last.get("loss", math.inf):
        shutil.rmtree(out / "best", ignore_errors=True)  # the last is the best
    elif (out / "best").exists():
        loop.log.note(
            f"The validation loss was {-state.best:.3f} before and is {last['loss']:.3f} now, "
            + RISEN[state.position.epoch > 0].format(out / "best")
        )
    trained = Trained(
        path=out,
        model=model,
        job=job,
        steps=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        loss=last.get("loss"),
        family=family,
    )
    done = begun | {"finished": True, "results": trained.values() | {"validation": last}}
    known = loop.guess.loss if loop.guess is not None else 0.0
    loss_curve(out / "loss.png", {job.preset: metrics}, guess=known, of=_language_loss(metrics))
    write_card(out, done, _use(job))
    write_json(out / RUN, done)
    return trained


RISEN = {  # by whether the run saw a text twice
    True: "so the text begins to be known by heart. The better model is in {}; a shorter run, more "
    "text or --set model.dropout=0.1 may help.",
    False: "though no text was seen twice: it may be chance. The better model is in {}.",
}
USES = {  # by how an objective teaches to fill blanks
    "masks": 'model.fill("The dog [MASK] loudly.")',
    "whole": 'model.fill("The dog [MASK] loudly.")',
    "spans": 'model.generate("Once upon a <extra_id_0> there was a dog.")',
    "": 'model.embed(["The dog barked loudly."])',
}


def _use(job: Job) -> str:
    """A line that uses a model for what it learned."""
    writes = job.config.architecture == "decoder"
    return 'model.generate("Once upon a time")' if writes else USES[fills(job.objective)]


def _language_loss(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The name of the loss that a guess by frequency is compared with, the first of all terms."""
    terms = (name for line in metrics for name in line if f"{name}{RIGHT}" in line)
    return next(terms, "loss")


def _ordinary(job: Job, shards: Shards, tokenizer: Tokenizer) -> float:
    """Of the tokens that an objective asks for, the share that stand for text."""
    batch = first_batch(job, Sampler(shards, job.settings.seed), tokenizer)
    targets = next(iter(batch.predictions.values())).targets
    return 1.0 - float(tokenizer.vocabulary.special[targets].mean()) if len(targets) else 1.0
