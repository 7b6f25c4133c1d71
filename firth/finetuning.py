"""Fine-tuning, told as a story: a model and labelled examples in, one that does the work out."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from firth.adapt.adapted import Adapted, adapters_on, merge, remove
from firth.adapt.files import base_of, save_adapter
from firth.drawing import loss_curve
from firth.errors import MismatchError, Misuse, storage_errors
from firth.files import locked, sha256, write_json
from firth.metrics.bootstrap import Figure, plain_figures
from firth.model import JOINED, Model, load
from firth.models.join import crossing, join
from firth.models.transformer import Transformer
from firth.runs import (
    LOCK,
    METRICS,
    RUN,
    announced,
    check_place,
    fingerprint,
    read_metrics,
    versions,
    write_tuned_card,
)
from firth.tasks import cautions
from firth.tasks.augment import copies
from firth.tasks.heads import drop_language_head
from firth.tasks.job import TuningJob
from firth.tasks.material import gather
from firth.tasks.recipes import (
    frozen_blocks,
    places_taken,
    recipe_for,
    sequence_length,
    tuning_settings,
)
from firth.tasks.table import TASKS, task_named
from firth.tasks.task import Task
from firth.tasks.work import BEST, Work, set_to_work
from firth.training.log import Listener, Log, tensorboard
from firth.training.loop import Hooks, Loop
from firth.training.machine import best_device, forget_memory, memory_used, prepare_network
from firth.training.optim import Optimizer
from firth.training.settings import grouped

SAVED = ("*model*.safetensors", "adapter.safetensors", f"{JOINED}/*.safetensors")


@dataclass(frozen=True)
class Tuned:
    """A finished run."""

    path: Path
    model: Model
    job: TuningJob
    figures: dict[str, Figure]  # on the dev examples
    examples: tuple[int, int]  # of train and dev
    variants: int  # of those of train, which were learned from as well
    trained: int  # parameters
    steps: int
    seconds: float
    device: str  # cpu or cuda
    memory: int  # the most it held; on the CPU all of this process, with what earlier runs left
    size: int  # bytes of the weights that were saved
    family: str
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        parameters = self.model.parameters
        return {
            "out": str(self.path),
            "task": self.job.task,
            "strategy": self.job.strategy,
            "n": self.examples[1],
            "train": self.examples[0],
            "variants": self.variants,
            "metrics": plain_figures(self.figures),
            "parameters": parameters,
            "trained": self.trained,
            "share": self.trained / max(1, parameters),
            "steps": self.steps,
            "seconds": self.seconds,
            "memory": self.memory,
            "size": self.size,
            "family": self.family,
            "notes": self.notes,
        }


def finetune(
    model: str | Path,
    *,
    task: str,
    train: str | Path,
    out: str | Path,
    dev: str | Path | None = None,
    decoder: str | Path | None = None,
    strategy: str = "",
    recipe: str | None = None,
    limit: int = 0,
    seed: int = 0,
    changes: Mapping[str, Any] | None = None,
    columns: Mapping[str, str] | None = None,
    balance: bool = False,
    augment: str = "",
    replay: str | Path | None = None,
    scratch: bool = False,
    resume: bool = False,
    device: str | None = None,
    listener: Listener = lambda kind, figures: None,
    hooks: Hooks | None = None,
) -> Tuned:
    """Teach a model a task with labelled examples; `out` becomes the run.

    `changes` sets single fields: of the settings (`rate`, `epochs`, …), of the head
    (`head.layers`), of the task (`task.prefix`, …). With a `decoder`, the model is an encoder that
    reads what the decoder writes about (Rothe et al. 2020).
    """
    out, on, chosen = Path(out), best_device(device), task_named(task)
    forget_memory(on)
    base, writer = _opened(chosen, model, decoder, seed)
    groups = grouped(changes or {}, ("head", "task"))
    name, row = recipe_for(task, recipe)
    frozen = frozen_blocks(row, base.config)
    spec = strategy or (f"freeze:{frozen}" if frozen else "full")
    length = sequence_length(row, base.config, groups["settings"], taken=places_taken(spec))
    material = gather(
        chosen,
        train,
        dev,
        limit=limit,
        seed=seed,
        length=length,
        columns=columns or {},
        options=groups["task"],
        balance=balance,
    )
    settings = tuning_settings(
        row,
        base.config,
        len(material.train) * copies(augment),
        strategy=spec,
        seed=seed,
        device=on.type,
        scratch=scratch,
        replay=replay is not None,
        changes=groups["settings"],
    )
    job = TuningJob(
        model=str(base.path),
        task=task,
        recipe=name,
        strategy=spec,
        settings=settings,
        facts=material.facts,
        head=groups["head"],
        columns=dict(columns or {}),
        limit=limit,
        balance=balance,
        augment=augment,
        scratch=scratch,
        decoder=str(writer.path) if writer is not None else None,
    )
    parents = {"model": base} | ({"decoder": writer} if writer is not None else {})
    begun = _lineage(job, parents, {"train": train, "dev": dev, "replay": replay})
    check_place(out, begun, resume)
    fresh = crossing(base.network) if writer is not None else ()
    reader, tokenizer = base.reader_needed(), base.tokenizer_needed()
    work = set_to_work(job, base.network.to(on), tokenizer, material, replay, reader, fresh)
    if writer is not None:
        work.notes.append(_said_of_joining(work.network))
    with storage_errors(out, "Free some space or name another place."):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, f"training in {out}"):
        begun = check_place(out, begun, resume)  # nobody else has begun there since
        with storage_errors(out, "Free some space or name another place."):
            write_json(out / RUN, begun)
        return _tune(job, base, work, out, resume, listener, hooks or Hooks(), begun)


def _opened(
    task: Task, model: str | Path, decoder: str | Path | None, seed: int
) -> tuple[Model, Model | None]:
    """The model that learns, joined to a decoder if one is named; and that decoder."""
    base = load(model, dtype="float32")
    writer = load(decoder, dtype="float32") if decoder is not None else None
    _check_joins(task, base, writer)
    for parent in (base, writer):
        if parent is not None:
            _settle(parent)
    if writer is not None:
        base = _joined(base, writer, seed)
    if base.config.architecture not in task.architectures:
        raise task.cannot(base.config.architecture)
    return base, writer


def _check_joins(task: Task, base: Model, writer: Model | None) -> None:
    """Two vocabularies are for tasks that read with one and write with the other."""
    able = ", ".join(name for name, other in TASKS.items() if other.joins)
    if writer is not None and not task.joins:
        raise Misuse(f"--decoder gives an encoder the means to write: for {able}, not {task.name}.")
    if base.config.reader is not None and not task.joins:
        raise MismatchError(
            f"{base.source} reads and writes with two vocabularies: it can be taught {able}, not "
            f"{task.name}."
        )


def _settle(model: Model) -> None:
    """Work the adapter that a model comes with into its weights, to learn more on top of it."""
    network = model.network
    for name, adapted in list(adapters_on(network).items()):
        if not adapted.changes:  # a head alone
            remove(network, name)
            network.config = adapted.config
            network.heads.update(adapted.heads)
    if not adapters_on(network):
        return
    try:
        merge(network, keep=False)
    except Misuse as error:
        raise MismatchError(
            f"{model.source} is an adapter, on top of which nothing more can be learned. {error}"
        ) from error


def _joined(reader: Model, writer: Model, seed: int) -> Model:
    """One model that reads with an encoder and writes with a decoder."""
    try:
        network = join(reader.network, writer.network, seed)
    except MismatchError as error:
        raise MismatchError(
            f"{reader.source} and {writer.source} cannot be joined. {error}"
        ) from error
    return replace(
        reader,
        network=network,
        tokenizer=writer.tokenizer_needed(),
        reader_tokenizer=reader.tokenizer_needed(),
        sentence=None,
        task=None,
    )


def _said_of_joining(network: Transformer) -> str:
    new = sum(network.get_parameter(name).numel() for name in crossing(network))
    return (
        f"{new:,} parameters between the encoder and the decoder are new and learn with every "
        "strategy; no family of transformers has this shape, so it opens with firth.load alone."
    )


def _lineage(
    job: TuningJob, parents: Mapping[str, Model], files: Mapping[str, str | Path | None]
) -> dict[str, Any]:
    """Where a run comes from: `run.json`."""
    paths = {name: model.path for name, model in parents.items() if model.path is not None}
    return {
        "kind": "finetuning",
        "finished": False,
        "command": sys.argv,
        "job": job.to_dict(),
        "task": job.facts.to_dict(),
        "data": {
            name: {"path": str(path), "sha256": sha256(Path(path)) if Path(path).is_file() else ""}
            for name, path in files.items()
            if path is not None
        },
        "parents": {
            name: {"path": str(path), "sha256": fingerprint(path)} for name, path in paths.items()
        },
        "versions": versions(),
    }


def _tune(
    job: TuningJob,
    base: Model,
    work: Work,
    out: Path,
    resume: bool,
    listener: Listener,
    hooks: Hooks,
    begun: dict[str, Any],
) -> Tuned:
    settings, device = job.settings, work.trainee.device
    if settings.track:
        listener = tensorboard(out / "tensorboard", listener)
    memory = lambda tokens, seconds: {"memory": memory_used(device)}  # noqa: E731
    log = Log(out / METRICS, settings.log_every, listener, memory)
    prepare_network(work.network, settings)
    optimizer = Optimizer(work.trainee, settings.optimizer)
    own = work.hooks(out, hooks)
    own = replace(own, validate=announced(own.validate, listener))
    loop = Loop(work.trainee, optimizer, settings, work.plan, out, log, own, device=device)
    if resume:
        loop.resume()
    else:
        for note in work.notes:
            log.note(note)
    if work.ready and loop.state.best == -math.inf:
        loop.validate()  # what comes after may be worse
    if not work.solved:
        loop.fit()
    work.recall(out)
    work.network.eval()
    return _finish(job, base, work, loop, out, begun)


def _save(model: Model, adapted: Adapted, out: Path, base: Model, *, new: bool) -> str:
    """A whole model; or, of one that was only added to, what was added."""
    assert base.path is not None
    new = new or base_of(base.path) is not None  # what was just joined or merged is nowhere else
    if adapted.strategy.row.hangs is None and (new or adapted.strategy.name != "probe"):
        return model.save(out)
    if new:
        replace(model, network=_bare(model.network)).save(out / JOINED)
    on_disk = base.source is None or Path(base.source).exists()
    named = str(base.path.resolve()) if on_disk else str(base.source)
    saved = save_adapter(adapted, out, base=JOINED if new else named)
    return f"adapter in {'PEFT' if saved.layout == 'peft' else 'Firth'}'s layout"


def _bare(network: Transformer) -> Transformer:
    """A network without what hangs on it; the weights are the same ones."""
    with torch.device("meta"):
        bare = Transformer(network.config, network.heads)
    state = network.state_dict()
    bare.load_state_dict({name: state[name] for name in bare.state_dict()}, assign=True)
    return bare


def _finish(
    job: TuningJob, base: Model, work: Work, loop: Loop, out: Path, begun: dict[str, Any]
) -> Tuned:
    """The run becomes a model: weights, figures with intervals, curve, card."""
    metrics = read_metrics(out) if (out / METRICS).is_file() else []
    validations = [line for line in metrics if line["kind"] == "validation"]
    guess = work.constant_loss()
    losses = [line["loss"] for line in validations if "loss" in line]
    learned = [*work.mishaps, *loop.stopped_early]
    if not work.solved:
        learned += cautions.of_learning(loop.state.history, losses, guess)
    if work.replay is not None:
        learned.append(cautions.of_memory(work.known, work.replay.loss(work.network)))
    for note in learned:
        loop.log.note(note)
    notes = [*work.notes, *learned]
    answers = work.answers()
    facts = work.task.tuned(work.facts, work.dev, answers)
    if facts != work.facts:
        work.facts = facts
        answers = work.answers()
    drop_language_head(work.network)
    labelled = len(work.train) // copies(job.augment)
    reader = base.reader_tokenizer
    model = Model(work.network, base.tokenizer, out, task=facts, reader_tokenizer=reader)
    family = _save(model, work.adapted, out, base, new=job.decoder is not None)
    tuned = Tuned(
        path=out,
        model=model,
        job=job,
        figures=work.task.figures(work.dev, answers, facts),
        examples=(labelled, len(work.dev)),
        variants=len(work.train) - labelled,
        trained=sum(parameter.numel() for parameter in work.learned().values()),
        steps=loop.state.step,
        seconds=loop.state.seconds + work.solving,
        device=work.trainee.device.type,
        memory=memory_used(work.trainee.device),
        size=sum(file.stat().st_size for name in SAVED for file in out.glob(name)),
        family=family,
        notes=notes,
    )
    done = begun | {"finished": True, "task": facts.to_dict(), "results": tuned.values()}
    if validations and not work.solved:  # what is solved has no curve
        loss_curve(out / "loss.png", {job.task: metrics}, guess=guess or 0.0)
    write_tuned_card(out, done)
    write_json(out / RUN, done)
    (out / BEST).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return tuned
