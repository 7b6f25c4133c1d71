"""`finetune(dry_run=True)`: parameters, memory and time of a run, from two discarded steps.

The first step is on the longest examples, which need the most memory; the second on random ones,
whose time is extrapolated to the whole run. Nothing is written.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.data.sampler import SamplerPosition
from firth.jobs.finetune_setup import FinetuneSetup, set_up
from firth.jobs.job_configs import FinetuneConfig
from firth.jobs.task_models import find_task_model
from firth.models.transformer import count_parameters
from firth.tasks.augmentation import num_copies
from firth.tasks.dataset import epoch_order, with_label_weights
from firth.tasks.finetune_recipes import expand_strategies
from firth.tasks.linear_probe import features
from firth.tasks.readers.examples import Example
from firth.tasks.task_heads import drop_language_head
from firth.tasks.task_trainer import TaskTrainer
from firth.training.config import FinetuneTrainingConfig
from firth.training.device_errors import is_out_of_memory
from firth.training.log import MetricsLog
from firth.training.loop import Callbacks, TrainingLoop
from firth.training.optim import muon_splits
from firth.training.runtime import peak_memory, remove_graphs, reset_peak_memory
from firth.training.state import PlannedBatch
from firth.utils.devices import available_memory, cpu_arithmetic
from firth.utils.errors import FirthError, InputError
from firth.utils.notebook import HtmlRepr

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class StrategyCost:
    """What fine-tuning with one strategy needs; memory in bytes, time in seconds."""

    strategy: str
    parameters: int
    trainable_parameters: int
    steps: int
    weights: int
    gradients: int
    optimizer: int  # its state
    activations: int | None  # None: the run does not fit into memory
    seconds: float | None  # of training, without validation

    @property
    def trainable_fraction(self) -> float:
        """The number of trainable parameters divided by all parameters."""
        return self.trainable_parameters / max(1, self.parameters)

    @property
    def memory(self) -> int:
        """The sum of all parts that are known."""
        return self.weights + self.gradients + self.optimizer + (self.activations or 0)

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        derived = {"trainable_fraction": self.trainable_fraction, "memory": self.memory}
        return {**asdict(self), **derived}


@dataclass(frozen=True, kw_only=True)
class DryRunResult(HtmlRepr):
    """The cost of fine-tuning with each strategy."""

    task: str
    examples: int  # to train on
    device: str  # type: cpu, cuda or mps
    precision: str
    batch_size: int
    memory_is_measured: bool  # False: estimated from the sizes of tensors, without torch itself
    rows: list[StrategyCost]
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        names = ", ".join(row.strategy for row in self.rows)
        return f"DryRunResult({self.task}, {self.examples:,} examples, {self.device}: {names})"

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        shared = {
            name: value for name, value in vars(self).items() if name not in ("rows", "notes")
        }
        rows = [row.values() for row in self.rows]
        return {"dry_run": True, **shared, "strategies": rows, "notes": self.notes}


def estimate_cost(job: FinetuneConfig) -> DryRunResult:
    """Measure the strategies of a fine-tuning run; without a strategy, all that may fit."""
    model = find_task_model(job)
    names = (job.strategy or ("all" if model is None else model.strategy)).split()
    setup = set_up(replace(job, strategy=names[0] if names != ["all"] else "full"))
    rows: list[StrategyCost] = []
    notes = list(setup.dataset.notes)
    errors: list[FirthError] = []
    for strategy in expand_strategies(names, setup.base.config):
        try:
            own = set_up(replace(job, strategy=strategy), setup.dataset)
            row, remarks = _cost(own)
            rows.append(row)
            notes += [f"{strategy}: {remark}" for remark in remarks]
        except InputError:  # would affect all strategies
            raise
        except FirthError as error:
            errors.append(error)
            notes.append(f"{strategy}: {error}")
    if not rows:
        raise errors[0]
    if setup.dataset.folds:
        notes.append(
            f"Cross-validation trains {len(setup.dataset.folds)} more models on most of the "
            "examples, which is not part of the time."
        )
    training = setup.config.training
    return DryRunResult(
        task=job.task,
        examples=len(setup.dataset.train) * num_copies(job.augment),
        device=setup.device.type,
        precision=training.precision,
        batch_size=training.batch_size,
        memory_is_measured=setup.device.type == "cuda",
        rows=rows,
        notes=list(dict.fromkeys(notes)),
    )


@dataclass(frozen=True)
class _Trial:
    """The two discarded steps."""

    activations: int = 0  # bytes, at most
    seconds: tuple[float, float] = (0.0, 0.0)
    tokens: int = 1  # of the second step


def _cost(setup: FinetuneSetup) -> tuple[StrategyCost, list[str]]:
    """Measure one strategy; return its cost and notes."""
    settings = replace(setup.config.training, compile="false")
    compiles = setup.config.training.compile == "true"
    notes = ["torch.compile, which the run uses, is not part of the time."] * compiles
    if "replay" in setup.sources:
        notes.append("The replayed texts are not part of the memory and the time.")
    samples = _samples(setup.dataset.train, settings)
    dataset = replace(setup.dataset, train=[*samples[0], *samples[1]], dev=[])
    with _allocated(setup.device) as peak:
        own = replace(setup, sources={})  # no replay
        trainer = own.trainer(setup.base, replace(setup.config, training=settings), dataset)
        with trainer.frozen_matrices():
            memory = _memory(trainer)
            trial: _Trial | None = _Trial()
            solving = _solving_seconds(trainer, len(setup.dataset.train) / len(dataset.train))
            try:
                _check_memory(memory, setup.device)
                if not trainer.solved:
                    trial = _take_steps(trainer, len(samples[0]), notes)
            except (FirthError, torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error.__cause__ or error):
                    raise
                trial = None
                notes.append(_too_large(error, memory))
    activations = None if trial is None else trial.activations
    if trial is not None and setup.device.type == "cuda":
        activations = max(0, peak() - sum(memory.values()))
    steps = 0 if trainer.solved else _num_steps(settings, trial)
    drop_language_head(trainer.network)  # as after a run
    row = StrategyCost(
        strategy=setup.config.strategy,
        parameters=count_parameters(trainer.network),
        trainable_parameters=sum(p.numel() for p in trainer.trainable().values()),
        steps=steps,
        **memory,
        activations=activations,
        seconds=None if trial is None else solving + _seconds(trial, steps),
    )
    return row, notes


def _samples(
    examples: Sequence[Example], settings: FinetuneTrainingConfig
) -> tuple[list[Example], list[Example]]:
    """Return a batch of the longest examples and one of random examples."""
    size = settings.batch_size
    longest = sorted(examples, key=lambda example: -sum(map(len, example.inputs)))[:size]
    order = epoch_order(len(examples), settings.seed, epoch=0)
    return longest, [examples[i] for i in order[:size]]


def _memory(trainer: TaskTrainer) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state."""
    module, kind = trainer.trainee, trainer.settings.optimizer.optimizer
    muon = muon_splits(module) if kind == "muon" else {}  # one state tensor; AdamW has two
    trained = {name: p.nbytes for name, p in module.named_parameters() if p.requires_grad}
    if trainer.solved:
        trained = {}
    return {
        "weights": sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()]),
        "gradients": sum(trained.values()),
        "optimizer": sum(size * (1 if name in muon else 2) for name, size in trained.items()),
    }


def _solving_seconds(trainer: TaskTrainer, factor: float) -> float:
    """Estimate the time to fit the head; features of `factor` times the examples are computed."""
    if not trainer.validate_first:
        return 0.0
    started = time.monotonic()
    features(trainer.task, trainer.network, trainer.train, trainer.metadata)
    return trainer.solve_seconds + factor * (time.monotonic() - started)


def _take_steps(trainer: TaskTrainer, count: int, notes: list[str]) -> _Trial:
    """Train on the first `count` examples, then on the others."""

    def note(kind: str, metrics: dict[str, Any]) -> None:
        notes.extend([metrics["note"]] if kind == "note" else [])

    saved = _SavedTensors(trainer.trainee.parameters())
    callbacks = Callbacks(before_micro_batch=lambda step, batch: saved.reset())
    log = MetricsLog(Path(os.devnull), trainer.settings.log_every, note)
    plan: Any = None  # the batches are given below
    loop = TrainingLoop(trainer.trainee, trainer.settings, plan, log, callbacks)
    loop.module.train()
    batches = [_batch(trainer, slice(count)), _batch(trainer, slice(count, 2 * count))]
    try:
        count_saved = nullcontext() if loop.device.type == "cuda" else saved.counting()
        with cpu_arithmetic(loop.state.threads, loop.state.onednn), count_saved:
            seconds = [_timed_step(loop, batch) for batch in batches]
    finally:
        remove_graphs(trainer.network)
    saved.reset()
    return _Trial(saved.peak, (seconds[0], seconds[1]), batches[1].batch.tokens)


def _batch(trainer: TaskTrainer, part: slice) -> PlannedBatch:
    batch = trainer.task.batch(trainer.train[part], trainer.metadata, trainer.network.config)
    if trainer.weights:
        batch = with_label_weights(batch, trainer.weights)
    return PlannedBatch(batch, SamplerPosition(), batch.tokens)


def _timed_step(loop: TrainingLoop, planned: PlannedBatch) -> float:
    started = time.monotonic()
    loop.train_step(planned)
    loop.wait_for_pending()
    if loop.device.type == "cuda":
        torch.cuda.synchronize(loop.device)
    return time.monotonic() - started


class _SavedTensors:
    """Count the bytes of activations that autograd saves for the backward pass."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in parameters}  # not activations
        self.sizes: dict[int, int] = {}  # of one micro-batch, by address
        self.peak = 0  # of all micro-batches

    def reset(self) -> None:
        """Begin another micro-batch."""
        self.peak = max(self.peak, sum(self.sizes.values()))
        self.sizes.clear()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is saved inside the context."""

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.own:
                self.sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield


@contextmanager
def _allocated(device: torch.device) -> Iterator[Callable[[], int]]:
    """Measure the largest number of bytes allocated in the context, beside what was before."""
    gc.collect()  # of an earlier strategy
    if device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak_memory(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    found: list[int] = []
    try:
        yield lambda: found[0]
    finally:
        found.append(peak_memory(device) - before)


def _check_memory(memory: Mapping[str, int], device: torch.device) -> None:
    """Raise an error if gradients and optimizer state do not fit beside the weights."""
    free, needed = available_memory(device), memory["gradients"] + memory["optimizer"]
    if free is not None and needed > free:
        raise MemoryError(f"{needed / GIB:.1f} GiB are needed, {free / GIB:.1f} GiB are free")


def _too_large(error: BaseException, memory: Mapping[str, int]) -> str:
    """Return a note about a run that does not fit into memory."""
    why = str(error.__cause__ or error).partition("\n")[0].rstrip(".")
    return (
        f"does not fit into memory: weights, gradients and optimizer state are "
        f"{sum(memory.values()) / GIB:.1f} GiB, and activations come on top ({why}); train fewer "
        "parameters (--strategy lora), or choose a smaller model or --max-length."
    )


def _num_steps(settings: FinetuneTrainingConfig, trial: _Trial | None) -> int:
    """Return the number of steps; estimate it for a budget in tokens or minutes."""
    if settings.steps or trial is None:
        return settings.steps
    if settings.tokens:
        return math.ceil(settings.tokens / trial.tokens)
    return math.ceil(60 * settings.minutes / trial.seconds[1])


def _seconds(trial: _Trial, steps: int) -> float:
    """Extrapolate the time of a step; only the first one is slow."""
    first, other = trial.seconds
    return first + (steps - 1) * other if steps else 0.0
