"""The training loop: steps, validation, checkpoints, and recovery from faults.

The whole state of a run is `TrainingState`, the weights and the optimizer. Randomness is derived
from the seed and the step, so a run that is killed at any time resumes from its last checkpoint and
ends with exactly the weights of an uninterrupted run.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from firth.models.language_model import TrainableModel
from firth.objectives.batch import Batch
from firth.training.accumulation import GradientAccumulator
from firth.training.checkpoint import Checkpoint
from firth.training.checkpoint_writer import CheckpointWriter
from firth.training.config import TrainingConfig
from firth.training.device_errors import gpu_failure, is_out_of_memory
from firth.training.distributed.choice import (
    make_parallel,
    resolve_parallel,
    shards_weights,
)
from firth.training.distributed.divided_tensors import copy_tensor
from firth.training.distributed.parallelism import num_dropout_slices
from firth.training.distributed.ranks import maximum, of_main_rank
from firth.training.log import ACCURACY, MetricsLog
from firth.training.loss_scaling import update_loss_scale
from firth.training.pending_metrics import PendingMetrics, StepSums
from firth.training.plateau import UnigramBaseline, is_stuck, plateau_note
from firth.training.runtime import (
    Compilations,
    apply_runtime_options,
    remove_graphs,
    stop_graph_capture,
)
from firth.training.schedule import lr_multiplier, warmup_fraction
from firth.training.state import BatchPlanner, PlannedBatch, TrainingState
from firth.utils.device_transfer import AsyncFetch
from firth.utils.devices import cpu_arithmetic
from firth.utils.errors import FirthError, Interrupted, StorageError

MAX_SKIPPED_STEPS = 5  # consecutive steps without a finite gradient before a rollback
MAX_ROLLBACKS = 3  # to an earlier checkpoint
ROLLBACK_LR_FACTOR = 0.5  # multiplies the learning rate after a rollback
OPTIMIZER_PREFIX = "optimizer."  # of the optimizer's tensors in a checkpoint
MAX_VALIDATION_FRACTION = 0.2  # of the time so far, for budgets in minutes
MIN_PLATEAU_STEP = 100  # first step at which a plateau may be reported
MIN_LOSS_DECREASE = 0.003  # nats by which the validation loss must fall to count as lower
HISTORY_SIZE = 50  # parts of a run whose mean losses are stored


class Diverged(FirthError):
    """The loss stays non-finite after all rollbacks."""


@dataclass
class Callbacks:
    """Functions that the loop calls during a run; `pretrain` and `finetune` validate themselves."""

    validate: Callable[[], dict[str, Any]] = dict  # returns metrics, with the key "loss"
    score: Callable[[dict[str, Any]], float] = lambda metrics: -float(metrics["loss"])
    on_improvement: Callable[[], None] = lambda: None  # after the best validation so far
    before_step: Callable[[TrainingState], None] = lambda state: None
    before_micro_batch: Callable[[int, Batch], None] = lambda step, batch: None  # used by tests


class TrainingLoop:
    """One training run, from its first step or its last checkpoint to the end of its budget."""

    def __init__(
        self,
        module: TrainableModel,
        config: TrainingConfig,
        plan: BatchPlanner,
        log: MetricsLog,
        callbacks: Callbacks,
        baseline: UnigramBaseline | None = None,
    ) -> None:
        """`plan` yields batches from a state on; `baseline` is used to detect a loss plateau."""
        shards = shards_weights(module.network, config, module.device)
        config = resolve_parallel(config, shards)
        apply_runtime_options(module.network, config)
        self.module, self.config = module, config
        self.parallel = make_parallel(module, config, shards)
        self.optimizer, self.ranks = self.parallel.optimizer, self.parallel.ranks
        self.gradients = GradientAccumulator(
            module, config, self.parallel, callbacks.before_micro_batch
        )
        self.plan, self.log, self.callbacks = plan, log, callbacks
        self.device, self.baseline = module.device, baseline
        folder = log.path.parent / "checkpoints"
        self.checkpoints = self.parallel.checkpoints(folder, config.keep_checkpoints)
        self.writer = CheckpointWriter(self.checkpoints, log.note)
        self.state = TrainingState(
            micro_batch_tokens=config.micro_batch_tokens,
            threads=torch.get_num_threads(),
            onednn=bool(torch.backends.mkldnn.enabled),
            dropout_slices=num_dropout_slices(module.network, config),
        )
        self.trainable = [name for name, p in module.named_parameters() if p.requires_grad]
        self.signal: int | None = None
        self.scales_loss = config.precision == "fp16"
        # Start a step before the metrics of the last one have reached the host. The loss scale of
        # fp16 depends on them.
        self.asynchronous = self.device.type == "cuda" and not self.scales_loss
        self._pending: PendingMetrics | None = None
        self.compilations = Compilations(config)
        self._validation_seconds = 0.0  # in this process, of the main rank
        self._agreed = 0.0  # seconds since the start, on all ranks
        self._started = time.monotonic()

    # ---- the run

    def fit(self) -> None:
        """Train until the budget is spent."""
        self._started, self._agreed = time.monotonic() - self.state.seconds, self.state.seconds
        self.module.train()  # loaded models are in eval mode
        if self.state.step == 0:
            self.checkpoint()  # for a rollback before the first regular checkpoint
        try:
            with self._signals(), cpu_arithmetic(self.state.threads, self.state.onednn):
                self._train_until_finished()
        except Exception as error:  # not a second Ctrl-C, which waits for nothing
            self.writer.wait()
            if isinstance(error, torch.AcceleratorError):
                raise gpu_failure(error, self.state.step, self.writer.saved_step) from error
            raise
        finally:
            self.parallel.end()
            if reason := remove_graphs(self.module.network):
                self.log.note(f"CUDA graphs were not captured, which is slower: {reason}")
        self.writer.wait()
        if self.writer.saved_step != self.state.step:
            self.checkpoint(final=True)

    def _train_until_finished(self) -> None:
        while not self.finished:
            for planned in self.plan(self.state, self.progress):
                if not self.train_step(planned) or not self._after_step():
                    break  # rolled back to a checkpoint: plan again from there
                if self.finished:
                    break

    @property
    def finished(self) -> bool:
        return (
            self.progress(self.state) >= 1.0
            or 0 < self.config.patience <= self.state.stale_validations
        )

    @property
    def stopped_early(self) -> list[str]:
        """A note, if early stopping ended the run before its budget."""
        if not self.finished or self.progress(self.state) >= 1.0:
            return []
        return [
            f"Stopped early at step {self.state.step}: the last {self.state.stale_validations} "
            "validations did not improve (--set patience=0 disables early stopping)."
        ]

    def progress(self, state: TrainingState) -> float:
        """Return the fraction of the budget that is spent, from 0 to 1."""
        return self.config.progress(state.step, state.planned_tokens, self._seconds())

    def _seconds(self) -> float:
        """Return the time since the start; with several ranks, as they last agreed on it."""
        return self._agreed if self.ranks.size > 1 else time.monotonic() - self._started

    def _agree(self) -> bool:
        """Agree on time, signals and the micro-batch size; return if a checkpoint is overdue."""
        state, late = self.state, float(self.writer.is_overdue)
        if self.ranks.size > 1:
            seconds = time.monotonic() - self._started
            own = (seconds, late, self.signal or 0, -(state.micro_batch_tokens or 1e18))
            self._agreed, late, number, size = maximum(own)
            self.signal = int(number) or None
            state.micro_batch_tokens = 0 if size == -1e18 else int(-size)
        return bool(late)

    # ---- one step

    def train_step(self, planned: PlannedBatch) -> bool:
        """Take one optimizer step; return False after a rollback to an earlier step."""
        state, config = self.state, self.config
        self.callbacks.before_step(state)
        started = time.monotonic()
        end = config.progress(state.step + 1, planned.planned_tokens, self._seconds())
        warmup = warmup_fraction(config.warmup, state.step + 1, end)
        at = end if end <= warmup else max(self.progress(state), warmup)
        multiplier = lr_multiplier(config.schedule, at, warmup, config.min_lr_ratio)
        multiplier *= state.lr_factor
        sums = self._gradients(planned.batch)
        if self.scales_loss:
            self.optimizer.scale_gradients(1 / state.loss_scale)
        norm = self.optimizer.clip_gradients()
        wide = torch.float32 if self.device.type == "mps" else torch.float64
        metrics = torch.stack([value.to(wide) for value in (*sums.values.values(), norm)])
        self.optimizer.step(multiplier, finite=metrics.isfinite().all())
        self.optimizer.zero_grad()
        if self.compilations.is_due(planned.batch):
            self._started += time.monotonic() - started  # a budget in minutes excludes compilation
        state.step += 1
        state.position, state.planned_tokens = planned.next_position, planned.planned_tokens
        state.tokens += planned.batch.tokens
        state.seconds = self._seconds()
        pending = PendingMetrics(
            replace(state),
            self.progress(state),
            multiplier * config.optimizer.learning_rate,
            planned.is_replay,
            sums,
            AsyncFetch(metrics),
        )
        previous, self._pending = self._pending, pending
        if self.asynchronous:
            return previous is None or self._finish_step(previous)
        return self.wait_for_pending()

    def wait_for_pending(self) -> bool:
        """Wait for the metrics of the last step; return False after a rollback."""
        pending, self._pending = self._pending, None
        return pending is None or self._finish_step(pending)

    def _finish_step(self, pending: PendingMetrics) -> bool:
        """Log a step whose metrics have arrived, or handle a non-finite loss."""
        *values, norm = pending.wait()
        if self.scales_loss and not update_loss_scale(self.state, math.isfinite(norm)):
            self.log.note(
                f"Step {pending.state.step} overflowed in fp16 and was skipped; the loss scale is "
                f"now {self.state.loss_scale:g}."
            )
            return True
        if not math.isfinite(norm) or not all(map(math.isfinite, values)):
            return self._skip_step(pending.state.step)
        self.state.skipped = 0
        losses = pending.sums.losses(values)
        if not pending.is_replay and pending.sums.weights:
            self._check_plateau(losses, next(iter(pending.sums.weights)), pending.progress)
        self.log.step(pending.state, pending.progress, losses, pending.learning_rate, norm)
        return True

    def _gradients(self, batch: Batch) -> StepSums:
        """Compute the gradient of a step, in smaller micro-batches if memory runs out."""
        while True:
            try:
                return self.gradients.accumulate(batch, self.state)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self.optimizer.zero_grad()
                if not stop_graph_capture(self.module.network):  # what is noted holds memory
                    self._halve_micro_batch(batch, error)

    # ---- faults

    def _halve_micro_batch(self, batch: Batch, error: BaseException) -> None:
        """Halve the micro-batch size for the rest of the run."""
        longest = int(batch.inputs.lengths.max())
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        parts = self.gradients.micro_batches(batch, self.state)
        whole = max((part.batch.tokens for part in parts), default=0)
        if whole <= longest:
            raise FirthError(
                f"One sequence of {longest} tokens does not fit into memory; choose a smaller "
                "max_length or preset, or --set activation_checkpointing=true."
            ) from error
        self.state.micro_batch_tokens = max(longest, whole // 2)
        if not self.parallel.repeats_alone:
            advice = f"--resume continues with {self.state.micro_batch_tokens:,}"
            try:
                self.checkpoints.limit_micro_batch(self.state.micro_batch_tokens)
            except StorageError:
                size = f"micro_batch_tokens={self.state.micro_batch_tokens}"
                advice = f"continue with --resume --set {size}"
            raise FirthError(
                f"Out of memory at step {self.state.step + 1} with micro-batches of {whole:,} "
                f"tokens, which --parallel shard cannot change during a run: {advice}."
            ) from error
        self.log.note(
            f"Out of memory at step {self.state.step + 1}: continuing with micro-batches of "
            f"{self.state.micro_batch_tokens:,} tokens and gradient accumulation."
        )

    def _skip_step(self, step: int) -> bool:
        """Note a skipped step; after several in a row, roll back to the last checkpoint."""
        state = self.state
        state.skipped += 1
        if state.skipped < MAX_SKIPPED_STEPS:
            self.log.note(f"Step {step} had no finite gradient and was skipped.")
            return True
        if state.rollbacks >= MAX_ROLLBACKS:
            raise Diverged(
                f"The loss is not finite at step {step}, after {MAX_ROLLBACKS} rollbacks to a "
                "checkpoint with half the learning rate; choose a smaller learning rate or a "
                "longer warm-up."
            )
        rollbacks, lr_factor = state.rollbacks + 1, state.lr_factor * ROLLBACK_LR_FACTOR
        self.restore()
        self.log.resume(self.state.step)
        self.state.rollbacks, self.state.lr_factor, self.state.skipped = rollbacks, lr_factor, 0
        self.log.note(
            f"{MAX_SKIPPED_STEPS} steps in a row had no finite gradient: rolled back to step "
            f"{self.state.step}, with {lr_factor:g} of the learning rate."
        )
        return False

    def _check_plateau(self, losses: Mapping[str, float], name: str, progress: float) -> None:
        """Store the mean loss of each part of the run, and report a plateau once."""
        state = self.state
        state.loss_sum = (state.loss_sum[0] + losses[name], state.loss_sum[1] + 1)
        if int(progress * HISTORY_SIZE) <= len(state.history):
            return
        state.history.append(state.loss_sum[0] / state.loss_sum[1])
        state.loss_sum = (0.0, 0)
        if state.plateau_reported or self.baseline is None or state.step < MIN_PLATEAU_STEP:
            return
        accuracy = losses.get(f"{name}{ACCURACY}", 0.0)
        if is_stuck(state.history, accuracy, self.baseline, HISTORY_SIZE):
            state.plateau_reported = True
            post_norm = self.module.network.config.norm_position == "post"
            self.log.note(plateau_note(state.history[-1], self.baseline, post_norm))

    # ---- after a step

    def _after_step(self) -> bool:
        """Validate and save a checkpoint when due; return False after a rollback."""
        state, config = self.state, self.config
        late, progress = self._agree(), self.progress(state)
        due = int(progress / config.validate_every + 1e-9) > state.validated or progress >= 1.0
        if config.minutes and progress < 1.0:  # keep most of the time for training
            due = due and self._validation_seconds <= MAX_VALIDATION_FRACTION * self._seconds()
        every = config.checkpoint_every
        by_steps = state.step % every == 0 if every else due
        if not (due or by_steps or late or self.signal):
            return True
        if not self.wait_for_pending():
            return False
        if due:
            self.validate()
        if (by_steps or late) and not state.skipped:  # never roll back to a skipped step
            self.checkpoint()
        if self.signal is not None:
            self._stop()
        return True

    def validate(self) -> None:
        """Compute the validation metrics, log them, and update the best score."""
        state = self.state
        state.validated = int(self.progress(state) / self.config.validate_every + 1e-9)
        self.module.eval()
        started = time.monotonic()
        self.log.callback("validating", {})  # for a progress display
        with self.parallel.validating():
            metrics = of_main_rank(self.callbacks.validate())
        self._validation_seconds += of_main_rank(time.monotonic() - started)
        self.module.train()
        if not metrics:
            return
        self.log.validation(state, metrics)
        score, loss = self.callbacks.score(metrics), float(metrics.get("loss", math.inf))
        improved = score > state.best_score or loss < state.lowest_loss - MIN_LOSS_DECREASE
        state.stale_validations = 0 if improved else state.stale_validations + 1
        state.lowest_loss = min(loss, state.lowest_loss)
        if score > state.best_score:
            state.best_score = score
            self.callbacks.on_improvement()

    def checkpoint(self, final: bool = False) -> None:
        """Save a checkpoint; if the disk is full, continue without one, except at the end."""
        optimizer = {f"{OPTIMIZER_PREFIX}{n}": t for n, t in self.optimizer.tensors().items()}
        tensors = self.parallel.own_tensors(dict(self._tensors()), optimizer)
        self.writer.save(self.state.step, tensors, self.state.to_dict(), final=final)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the trainable parameters and the buffers by name."""
        parameters = dict(self.module.named_parameters())
        yield from ((name, parameters[name]) for name in self.trainable)
        yield from self.module.named_buffers()

    def restore(self) -> Checkpoint | None:
        """Load the newest intact checkpoint, if there is one."""
        self.writer.wait()
        notes: list[str] = []
        found = self.checkpoints.newest(notes)
        for note in notes:
            self.log.note(note)
        if found is not None:
            for name, tensor in self._tensors():
                copy_tensor(tensor, found.weights[name])
            self.optimizer.restore(found.weights, OPTIMIZER_PREFIX)
            self.state, self.writer.saved_step = TrainingState.from_dict(found.state), found.step
        limit = self.checkpoints.micro_batch_limit()
        sizes = (self.state.micro_batch_tokens, self.config.micro_batch_tokens, limit)
        self.state.micro_batch_tokens = min(filter(None, sizes), default=0)
        if found is None:
            return None
        self._pending = None
        self.state.threads = self.state.threads or torch.get_num_threads()
        self._started = time.monotonic() - self.state.seconds
        return found

    def resume(self) -> None:
        """Resume from the newest checkpoint, and note its step."""
        found = self.restore()
        self.log.resume(self.state.step)
        self.log.note(
            f"Resuming from step {found.step}."
            if found
            else "There is no checkpoint yet: starting at step 0."
        )

    # ---- signals

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Finish the current step on Ctrl-C or SIGTERM, then stop; stop at once on a second one."""

        def handle(number: int, frame: Any) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number

        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        self.writer.wait()
        if self.writer.saved_step != self.state.step:
            self.checkpoint(final=True)
        saved = "a checkpoint is saved, and the same command with --resume continues from it."
        raise Interrupted(f"Stopped at step {self.state.step}; {saved}")
