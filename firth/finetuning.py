"""Fine-tuning, told as a story: a model and labelled examples in, one that does the work out."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from firth.adapt.adapted import Adapted
from firth.adapt.files import save_adapter
from firth.drawing import loss_curve
from firth.errors import storage_errors
from firth.files import locked, sha256, write_json
from firth.model import Model, load
from firth.runs import (
    LOCK,
    METRICS,
    RUN,
    check_place,
    fingerprint,
    read_metrics,
    versions,
    write_tuned_card,
)
from firth.tasks import cautions
from firth.tasks.bootstrap import Figure
from firth.tasks.heads import drop_language_head
from firth.tasks.material import gather
from firth.tasks.recipes import frozen_blocks, recipe_for, tuning_settings
from firth.tasks.table import task_named
from firth.tasks.task import Facts, cannot
from firth.tasks.work import BEST, Work, set_to_work
from firth.training.log import Figures, Listener, Log, tensorboard
from firth.training.loop import Hooks, Loop
from firth.training.machine import best_device, memory_used
from firth.training.optim import Optimizer
from firth.training.settings import TuningSettings, grouped


@dataclass(frozen=True, kw_only=True)
class TuningJob:
    """Everything that decides a run; with the same data, the same job gives the same bits."""

    model: str
    task: str
    recipe: str
    strategy: str
    settings: TuningSettings
    facts: Facts
    head: dict[str, Any] = field(default_factory=dict)
    limit: int = 0
    balance: bool = False
    augment: str = ""
    scratch: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON knows it."""
        return {**asdict(self), "facts": self.facts.to_dict()}


@dataclass(frozen=True)
class Tuned:
    """A finished run."""

    path: Path
    model: Model
    job: TuningJob
    figures: dict[str, Figure]  # on the dev examples
    examples: tuple[int, int]  # of train and dev
    trained: int  # parameters
    steps: int
    seconds: float
    memory: int
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
            "metrics": {name: asdict(figure) for name, figure in self.figures.items()},
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
    (`head.layers`), of the task (`task.prefix`, …).
    """
    out, on, chosen = Path(out), best_device(device), task_named(task)
    base = load(model, dtype="float32")
    if base.config.architecture not in chosen.architectures:
        raise cannot(task, base.config.architecture)
    groups = grouped(changes or {}, ("head", "task"))
    name, row = recipe_for(task, recipe)
    length = int(groups["settings"].get("length", min(row.length, base.config.context)))
    material = gather(
        chosen,
        train,
        dev,
        limit=limit,
        seed=seed,
        length=length,
        columns=columns or {},
        options=groups["task"],
    )
    frozen = frozen_blocks(row, base.config)
    spec = strategy or (f"freeze:{frozen}" if frozen else "full")
    settings = tuning_settings(
        row,
        base.config,
        len(material.train),
        strategy=spec,
        seed=seed,
        device=on.type,
        scratch=scratch,
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
        limit=limit,
        balance=balance,
        augment=augment,
        scratch=scratch,
    )
    begun = _lineage(job, base, {"train": train, "dev": dev, "replay": replay})
    check_place(out, begun, resume)
    with storage_errors(out, "Free some space or name another place."):
        out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK, f"training in {out}"):
        with storage_errors(out, "Free some space or name another place."):
            write_json(out / RUN, begun)
        work = set_to_work(
            chosen,
            spec,
            base.network.to(on),
            base.tokenizer_needed(),
            material,
            settings,
            head=job.head,
            balance=balance,
            augmented=augment,
            scratch=scratch,
            replay=replay,
        )
        return _tune(job, base, work, out, resume, listener, hooks or Hooks(), begun)


def _lineage(job: TuningJob, base: Model, files: Mapping[str, str | Path | None]) -> dict[str, Any]:
    """Where a run comes from: `run.json`."""
    assert base.path is not None
    return {
        "kind": "finetuning",
        "finished": False,
        "command": sys.argv,
        "job": job.to_dict(),
        "task": job.facts.to_dict(),
        "data": {
            name: {"path": str(path), "sha256": sha256(Path(path))}
            for name, path in files.items()
            if path is not None
        },
        "parents": {"model": {"path": str(base.path), "sha256": fingerprint(base.path)}},
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
    log = Log(out / METRICS, settings.log_every, listener, lambda n, s: _speed(n, s, device))
    optimizer = Optimizer(work.trainee, settings.optimizer)
    own = work.hooks(out, hooks)
    loop = Loop(work.trainee, optimizer, settings, work.plan, out, log, own, device=device)
    if resume:
        loop.resume()
    else:
        for note in work.notes:
            log.note(note)
    if not work.solved:
        loop.fit()
    work.recall(out)
    work.network.eval()
    return _finish(job, base, work, loop, out, begun)


def _save(model: Model, adapted: Adapted, out: Path, base: Model) -> str:
    """A whole model; or, of one that was only added to, what was added."""
    if adapted.strategy.row.hangs is None and adapted.strategy.name != "probe":
        return model.save(out)
    saved = save_adapter(adapted, out, base=str(base.path))
    return f"adapter in {'PEFT' if saved.layout == 'peft' else 'Firth'}'s layout"


def _speed(tokens: int, seconds: float, device: torch.device) -> Figures:
    return {"memory": memory_used(device)}


def _finish(
    job: TuningJob, base: Model, work: Work, loop: Loop, out: Path, begun: dict[str, Any]
) -> Tuned:
    """The run becomes a model: weights, figures with intervals, curve, card."""
    metrics = read_metrics(out) if (out / METRICS).is_file() else []
    validations = [line for line in metrics if line["kind"] == "validation"]
    guess = cautions.constant_guess(work.task, work.dev, work.facts)
    notes = [*work.notes, *cautions.of_learning(validations, guess)]
    if work.replay is not None:
        notes.append(cautions.of_memory(work.known, work.replay.loss(work.network)))
    answers = work.answers()
    facts = work.task.tuned(work.facts, work.dev, answers)
    if facts != work.facts:
        work.facts = facts
        answers = work.answers()
    drop_language_head(work.network)
    model = Model(work.network, base.tokenizer, out, task=facts)
    family = _save(model, work.adapted, out, base)
    tuned = Tuned(
        path=out,
        model=model,
        job=job,
        figures=work.task.figures(work.dev, answers, facts),
        examples=(len(work.train), len(work.dev)),
        trained=sum(parameter.numel() for parameter in work.learned().values()),
        steps=loop.state.step,
        seconds=loop.state.seconds,
        memory=memory_used(work.trainee.device),
        size=sum(file.stat().st_size for file in out.glob("*model*.safetensors")),
        family=family,
        notes=notes,
    )
    done = begun | {"finished": True, "task": facts.to_dict(), "results": tuned.values()}
    if validations:
        loss_curve(out / "loss.png", {job.task: metrics}, guess=guess or 0.0)
    write_tuned_card(out, done)
    write_json(out / RUN, done)
    (out / BEST).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    return tuned
