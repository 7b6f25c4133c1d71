"""The loop: learn, watch, keep, go on. What it learns and from what, others say.

A run's whole state is `State`, the weights and the optimizer. Randomness is derived from the seed
and the step, so a run that is killed at any instant goes on from its last checkpoint and ends with
the very bits of a run that was never stopped.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth.draws import derive_one
from firth.errors import FirthError, Interrupted, StorageError
from firth.models.journey import Fetched
from firth.objectives.batch import Batch
from firth.training.checkpoint import Checkpoint, Checkpoints
from firth.training.flight import RIGHT, Flight, Sums
from firth.training.log import Log
from firth.training.losses import Term, Trainee
from firth.training.machine import autocast
from firth.training.optim import Optimizer
from firth.training.plateau import Guess, is_stuck
from firth.training.schedule import multiplier
from firth.training.settings import Settings
from firth.training.state import Planned, State

PATIENCE = 5  # steps in a row without a finite gradient before going back
RETURNS = 3  # times a run may go back
SLOWER = 0.5  # what the rate is multiplied with then
OFTEN = 300.0  # seconds between two checkpoints
STATE = "optimizer."  # before the names of the optimizer's tensors
MEMORY = (  # what torch, oneDNN, CUDA, C++ and the system say when there is none left
    *("not enough memory", "can't allocate memory", "could not create a primitive"),
    *("bad_alloc", "Cannot allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
)
MOST_VALIDATING = 0.2  # of the time so far, where a budget is one of minutes
EARLIEST = 100  # step at which a plateau may be named
OFF_A_PLATEAU = {  # by whether a network is post-norm
    True: "--set model.norm_place=pre, a smaller rate or a longer warm-up may leave such a "
    "plateau; post-norm networks often do not.",
    False: "A smaller rate, a longer warm-up or a longer run may leave such a plateau.",
}
LOWER = 0.003  # nats by which a validation's loss must fall to be lower
BUCKETS = 50  # parts of a run whose mean losses are remembered


class Diverged(FirthError):
    """A run found no finite gradient any more."""


@dataclass
class Hooks:
    """What others want to do at some moments of a run."""

    validate: Callable[[], dict[str, Any]] = dict  # with the key "loss"
    worth: Callable[[dict[str, Any]], float] = lambda figures: -float(figures["loss"])
    better: Callable[[], None] = lambda: None  # the last validation was the best so far
    before_step: Callable[[State], None] = lambda state: None
    before_part: Callable[[int, Batch], None] = lambda step, batch: None  # tests cause faults here


class Loop:
    """One run, from its first step or its last checkpoint to its end."""

    def __init__(
        self,
        learner: Trainee,
        optimizer: Optimizer,
        settings: Settings,
        plan: Callable[[State, Callable[[State], float]], Iterator[Planned]],
        run: Path,
        log: Log,
        hooks: Hooks,
        *,
        device: torch.device,
        guess: Guess | None = None,
    ) -> None:
        """`plan` gives the batches from a state on; `guess`: what one by frequency brings."""
        self.learner, self.optimizer, self.settings = learner, optimizer, settings
        self.plan, self.log, self.hooks = plan, log, hooks
        self.device, self.guess = device, guess
        self.checkpoints = Checkpoints(run / "checkpoints", keep=settings.keep)
        self.state = State(micro=settings.micro)
        self.learned = [name for name, p in learner.named_parameters() if p.requires_grad]
        self.signal: int | None = None
        self.ahead = device.type == "cuda"  # begin a step before the last one's figures are here
        self._flight: Flight | None = None
        self._warm = False  # this process has done a step
        self._validating = 0.0  # seconds of this process
        self._kept = -1  # the step of the newest checkpoint
        self._began = self._checkpointed = time.monotonic()

    # ---- the story

    def fit(self) -> None:
        """Learn until the budget is spent."""
        self._began = time.monotonic() - self.state.seconds
        self.learner.train()  # a model that was opened is at rest, without dropout
        if self.state.step == 0:
            self.checkpoint()  # a run that goes astray at once needs a place to return to
        try:
            with self._signals():
                self._go_on()
        finally:
            if reason := self.learner.network.unrecorded:
                self.log.note(f"What blocks compute was not recorded, which is slower: {reason}")
            self.learner.network.record_blocks(False)
        if self._kept != self.state.step:
            self.checkpoint(final=True)

    def _go_on(self) -> None:
        while not self.finished:
            for planned in self.plan(self.state, self.progress):
                if not self._learn(planned) or not self._after_step():
                    break  # back at an earlier checkpoint: the plan begins anew
                if self.finished:
                    break

    @property
    def finished(self) -> bool:
        return self.progress(self.state) >= 1.0 or 0 < self.settings.patience <= self.state.stale

    @property
    def stopped_early(self) -> list[str]:
        """A sentence, if patience was over before the budget was."""
        if not self.finished or self.progress(self.state) >= 1.0:
            return []
        return [
            f"It stopped early, at step {self.state.step}: {self.state.stale} validations in a row "
            "were no better and had no lower loss (--set patience=0 goes on)."
        ]

    def progress(self, state: State) -> float:
        """How far the run has come, from 0 to 1."""
        return self.settings.progress(state.step, state.asked, self._seconds())

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    # ---- one step

    def _learn(self, planned: Planned) -> bool:
        """One step; False when the run went back to an earlier one."""
        state, settings = self.state, self.settings
        self.hooks.before_step(state)
        begun = time.monotonic()
        ahead = settings.progress(state.step + 1, planned.asked, self._seconds())
        rate = multiplier(settings.schedule, ahead, settings.warmup, settings.floor)
        sums = self._gradients(planned.batch)
        norm = self.optimizer.clip()
        figures = torch.stack([value.double() for value in (*sums.values.values(), norm)])
        self.optimizer.step(rate * state.slowed, finite=figures.isfinite().all())
        self.optimizer.zero()
        if not self._warm and settings.compile == "true":
            self._began += time.monotonic() - begun  # compiling is no part of a budget of minutes
        self._warm = True
        state.step, state.position, state.asked = state.step + 1, planned.after, planned.asked
        state.tokens += planned.batch.tokens
        state.seconds = self._seconds()
        really = rate * state.slowed * settings.optimizer.rate
        before, self._flight = (
            self._flight,
            Flight(
                replace(state), self.progress(state), really, planned.aside, sums, Fetched(figures)
            ),
        )
        if self.ahead:
            return before is None or self._land(before)
        return self.settle()

    def settle(self) -> bool:
        """Wait for the figures of the last step; False when the run went back to an earlier one."""
        flight, self._flight = self._flight, None
        return flight is None or self._land(flight)

    def _land(self, flight: Flight) -> bool:
        *values, norm = flight.arrive()
        if not math.isfinite(norm) or not all(map(math.isfinite, values)):
            return self._not_finite(flight.state.step)
        self.state.skipped = 0
        losses = flight.sums.losses(values)
        if not flight.aside and flight.sums.weights:
            self._remember(losses, next(iter(flight.sums.weights)), flight.progress)
        self.log.step(flight.state, flight.progress, losses, flight.rate, norm)
        return True

    def _gradients(self, batch: Batch) -> Sums:
        """The gradient of a whole step, in as many parts as memory asks for, and its losses."""
        while True:
            try:
                return self._accumulate(batch)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_memory(error):
                    raise
                self.optimizer.zero()
                if not self.learner.network.stop_recording():  # what is noted holds memory
                    self._halve(batch, error)

    def _accumulate(self, batch: Batch) -> Sums:
        counts = self.learner.counts(batch)
        sums: dict[str, Tensor] = {}
        rights: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        seed = derive_one(self.settings.seed, self.state.step)
        for i, part in enumerate(batch.split(self.state.micro or batch.tokens)):
            self.hooks.before_part(self.state.step, part)
            torch.manual_seed(derive_one(seed, i) & (2**63 - 1))  # dropout
            with autocast(self.settings, self.device):
                terms: dict[str, Term] = self.learner(part)
            if not terms:  # a part too short to be asked anything
                continue
            loss = sum(
                (term.weight / counts[name] * term.sum for name, term in terms.items()),
                start=torch.zeros((), device=self.device),
            )
            if loss.requires_grad:  # not where a text is replayed while only a head learns
                loss.backward()
            for name, term in terms.items():
                sums[name] = sums.get(name, 0) + term.sum.detach()
                if term.right is not None:
                    rights[name] = rights.get(name, 0) + term.right
                weights[name] = term.weight
            del terms, term, loss  # a GPU records nothing while a gradient could still be asked for
        hits = {f"{name}{RIGHT}": right for name, right in rights.items()}
        return Sums(sums | hits, counts, weights)

    # ---- trouble

    def _halve(self, batch: Batch, error: BaseException) -> None:
        """Out of memory: compute half as many tokens at once from now on."""
        size, longest = batch.tokens, int(batch.inputs.lengths.max())
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        whole = min(self.state.micro or size, size)
        if whole <= longest:
            raise FirthError(
                f"One sequence of {longest} tokens does not fit into memory; choose a shorter "
                "length, a smaller preset, or recompute=true."
            ) from error
        self.state.micro = max(longest, whole // 2)
        self.log.note(
            f"Out of memory at step {self.state.step + 1}: from now on {self.state.micro:,} tokens "
            "are computed at once, and gradients are added up."
        )

    def _not_finite(self, step: int) -> bool:
        """A step without a finite gradient was skipped; after several, the run goes back."""
        state = self.state
        state.skipped += 1
        if state.skipped < PATIENCE:
            self.log.note(f"Step {step} had no finite gradient and was skipped.")
            return True
        if state.returns >= RETURNS:
            raise Diverged(
                f"The loss is not finite at step {step}, after {RETURNS} returns to a "
                "checkpoint with half the rate; choose a smaller rate or a longer warm-up."
            )
        returns, slowed = state.returns + 1, state.slowed * SLOWER
        self.restore()
        self.log.resume(self.state.step)
        self.state.returns, self.state.slowed, self.state.skipped = returns, slowed, 0
        self.log.note(
            f"{PATIENCE} steps in a row had no finite gradient: back to step {self.state.step}, "
            f"with {slowed:g} of the rate."
        )
        return False

    def _remember(self, losses: Mapping[str, float], name: str, progress: float) -> None:
        """Keep the mean loss of each part of the run over tokens, and name a plateau."""
        state = self.state
        state.part = (state.part[0] + losses[name], state.part[1] + 1)
        if int(progress * BUCKETS) <= len(state.history):
            return
        state.history.append(state.part[0] / state.part[1])
        state.part = (0.0, 0)
        if state.named or self.guess is None or state.step < EARLIEST:
            return
        right = losses.get(f"{name}{RIGHT}", 0.0)
        if is_stuck(state.history, right, self.guess, BUCKETS):
            state.named = True
            post = self.learner.network.config.norm_place == "post"
            self.log.note(
                f"The loss sits at {state.history[-1]:.2f}, near the {self.guess.loss:.2f} of "
                "guessing tokens by their frequency alone: this run may not be learning from "
                f"context. {OFF_A_PLATEAU[post]}"
            )

    # ---- after a step

    def _after_step(self) -> bool:
        """What is due now; False when the run went back to an earlier step."""
        state, settings = self.state, self.settings
        progress = self.progress(state)
        due = int(progress / settings.validate_every + 1e-9) > state.validated or progress >= 1.0
        if settings.minutes and progress < 1.0:  # such a budget is there to learn in
            due = due and self._validating <= MOST_VALIDATING * self._seconds()
        every = settings.checkpoint_every
        by_steps = state.step % every == 0 if every else due
        late = time.monotonic() - self._checkpointed > OFTEN
        if not (due or by_steps or late or self.signal):
            return True
        if not self.settle():
            return False
        if due:
            self.validate()
        if (by_steps or late) and not state.skipped:  # one would be no place to return to
            self.checkpoint()
        if self.signal is not None:
            self._stop()
        return True

    def validate(self) -> None:
        """Ask how it does on text it does not learn from."""
        state = self.state
        state.validated = int(self.progress(state) / self.settings.validate_every + 1e-9)
        self.learner.eval()
        begun = time.monotonic()
        figures = self.hooks.validate()
        self._validating += time.monotonic() - begun
        self.learner.train()
        if not figures:
            return
        self.log.validation(state, figures)
        worth, loss = self.hooks.worth(figures), float(figures.get("loss", math.inf))
        moves = worth > state.best or loss < state.lowest - LOWER
        state.stale = 0 if moves else state.stale + 1
        state.lowest = min(loss, state.lowest)
        if worth > state.best:
            state.best = worth
            self.hooks.better()

    def checkpoint(self, final: bool = False) -> None:
        """Keep everything; a full disk is waited out, except at the end."""
        self._checkpointed = time.monotonic()
        tensors = dict(self._tensors()) | {
            f"{STATE}{name}": tensor for name, tensor in self.optimizer.tensors().items()
        }
        try:
            self.checkpoints.save(self.state.step, tensors, self.state.saved())
            self._kept = self.state.step
        except StorageError as error:
            if final:
                raise
            self.log.note(f"{error} The run goes on, and will try again.")

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight that is learned, under its first name; the others stay as they were."""
        own = dict(self.learner.named_parameters())
        yield from ((name, own[name]) for name in self.learned)
        yield from self.learner.named_buffers()

    def restore(self) -> Checkpoint | None:
        """Go on from the newest checkpoint that is whole, if there is any."""
        notes: list[str] = []
        found = self.checkpoints.newest(notes)
        for note in notes:
            self.log.note(note)
        if found is None:
            return None
        with torch.no_grad():
            for name, tensor in self._tensors():
                tensor.copy_(found.weights[name])
        kept = {n.removeprefix(STATE): n for n in found.weights if n.startswith(STATE)}
        self.optimizer.restore({name: found.weights[stored] for name, stored in kept.items()})
        self.state, self._kept, self._flight = State.restored(found.state), found.step, None
        self._began = time.monotonic() - self.state.seconds
        return found

    def resume(self) -> None:
        """Go on where the run stopped, and say where that is."""
        found = self.restore()
        self.log.resume(self.state.step)
        self.log.note(
            f"Going on from step {found.step}."
            if found
            else "There is no checkpoint yet: the run begins at step 0."
        )

    # ---- being asked to stop

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM let the step end, then stop the run; a second of either, at once."""

        def asked(number: int, frame: Any) -> None:
            if self.signal is not None:
                raise KeyboardInterrupt
            self.signal = number

        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {n: signal.signal(n, asked) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        if self._kept != self.state.step:
            self.checkpoint(final=True)
        raise Interrupted(
            f"Stopped at step {self.state.step}, as asked; everything is kept, and the same "
            "command with --resume goes on from there."
        )


def _is_memory(error: BaseException) -> bool:
    """Whether an error says that memory is exhausted; torch has a type for some of them only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in MEMORY)
