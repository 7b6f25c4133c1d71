"""The metrics log of a run: one JSON line for each logged step, validation and note."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from firth.utils.errors import UsageError
from firth.utils.files import atomic_file
from firth.utils.notebook import in_notebook, show_bar

if TYPE_CHECKING:
    from firth.training.state import TrainingState

ACCURACY = " accuracy"  # suffix after the name of a loss: the fraction of correct predictions
ALWAYS_LOGGED = 10  # the first steps
LOG_SECONDS = 1.0  # between two lines, without `log_every`

Metrics = dict[str, Any]
Callback = Callable[[str, Metrics], None]


class MetricsLog:
    """Write `metrics.jsonl`, and pass each line to a callback.

    The callback gets the kind of line (step, validation, note) and its metrics.
    """

    def __init__(
        self,
        path: Path,
        every: int,
        callback: Callback,
        speed: Callable[[int, float], Metrics] = lambda tokens, seconds: {},
    ) -> None:
        """`speed` computes metrics such as MFU from a number of tokens and seconds."""
        self.path, self.every, self.callback, self.speed = path, every, callback, speed
        self._recent: list[dict[str, float]] = []
        self._last, self._tokens, self._seconds = 0.0, -1, 0.0  # -1: no speed on the next line

    def resume(self, step: int) -> None:
        """Remove the lines after a step, which will be repeated."""
        self._recent, self._tokens, self._seconds = [], -1, 0.0
        if not self.path.is_file():
            return
        kept = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
        with atomic_file(self.path) as file:
            file.write("".join(f"{line}\n" for line in kept).encode())

    def step(
        self,
        state: TrainingState,
        progress: float,
        terms: dict[str, float],
        learning_rate: float,
        grad_norm: float,
    ) -> None:
        """Log a step; losses are means over the steps since the last line."""
        self._recent.append(terms)
        now = time.monotonic()
        auto = state.step <= ALWAYS_LOGGED or now - self._last >= LOG_SECONDS
        if state.step % self.every if self.every else not auto:
            return
        names = dict.fromkeys(name for terms in self._recent for name in terms)
        mean = {name: fmean(t[name] for t in self._recent if name in t) for name in names}
        tokens, seconds = state.tokens - self._tokens, state.seconds - self._seconds
        metrics = {
            "step": state.step,
            **mean,
            "learning_rate": learning_rate,
            "grad_norm": grad_norm,
            "tokens": state.tokens,
        }
        metrics |= {"seconds": state.seconds, "epoch": state.position.epoch}
        if seconds > 0 and self._tokens >= 0:
            metrics |= {"tokens_per_second": tokens / seconds, **self.speed(tokens, seconds)}
        metrics["progress"] = progress
        self._last, self._recent = now, []
        self._tokens, self._seconds = state.tokens, state.seconds
        self._write("step", metrics)

    def validation(self, state: TrainingState, metrics: Metrics) -> None:
        """Log a validation."""
        self._write("validation", {"step": state.step, "tokens": state.tokens, **metrics})
        self._tokens = -1  # its duration is not part of the next step

    def fitted(self, metrics: Metrics, kind: str = "step") -> None:
        """Log metrics of a model that is fitted without optimizer steps, such as an epoch's."""
        self._write(kind, {"step": 0, **metrics})

    def note(self, text: str) -> None:
        """Log a message for the user."""
        self._write("note", {"note": text})

    def _write(self, kind: str, metrics: Metrics) -> None:
        self.callback(kind, metrics)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **metrics}) + "\n")
        except OSError:  # a full disk: the line is lost, the run continues
            return


def show_in_notebook(kind: str, metrics: Metrics) -> None:
    """Show a run in a notebook: a progress bar with loss and speed, validations and notes."""
    if kind == "step":
        stage = metrics.get("run", "training")
        show_bar(stage, metrics["progress"], 1.0, describe_step(metrics))
    elif kind == "progress":
        show_bar(metrics["what"], metrics["done"], metrics["total"], "")
    elif in_notebook() and kind in ("note", "validation"):
        print(run_name(metrics) + (metrics.get("note") or describe_validation(metrics)))


def describe_step(metrics: Mapping[str, Any]) -> str:
    """Format the metrics of one step."""
    parts = [f"step {metrics['step']:,}", f"loss {metrics['loss']:.3f}"]
    if "tokens_per_second" in metrics:
        parts.append(f"{metrics['tokens_per_second']:,.0f} tok/s")
    if "mfu" in metrics:
        parts += [f"MFU {metrics['mfu']:.0%}", f"{metrics['memory'] / 2**30:.1f} GiB"]
    return "  ".join(parts)


def describe_validation(metrics: Mapping[str, Any]) -> str:
    """Format a validation as one line; the only term of a loss is not repeated.

    >>> describe_validation({"step": 1200, "tokens": 9, "loss": 1.25, "accuracy": 0.5})
    'step 1,200  validation  loss 1.250  accuracy 0.500'
    >>> describe_validation({"step": 9, "loss": 1.25, "causal": 1.25, "causal accuracy": 0.5})
    'step 9  validation  loss 1.250  causal accuracy 0.500'
    """
    terms = [name for name in metrics if f"{name}{ACCURACY}" in metrics]
    hidden = [*(terms if len(terms) == 1 else ()), "progress"]
    shown = {k: v for k, v in metrics.items() if isinstance(v, float) and k not in hidden}
    losses = "  ".join(f"{name} {value:.3f}" for name, value in shown.items())
    step = f"step {metrics['step']:,}  " if metrics["step"] else ""  # 0: fitted without steps
    return f"{step}validation  {losses}"


def run_name(metrics: Mapping[str, Any]) -> str:
    """Return the name of the run, if there are several."""
    return f"{metrics['run']}: " if "run" in metrics else ""


def _step(line: str) -> int:
    try:
        return int(json.loads(line).get("step", 0))
    except ValueError:  # the incomplete last line of a killed run
        return 1 << 62


def tensorboard_callback(folder: Path, callback: Callback) -> Callback:
    """Return a callback that also writes TensorBoard event files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "TensorBoard is not installed; run `pip install 'firth[track]'`."
        ) from error
    writer = SummaryWriter(folder)

    def write(kind: str, metrics: Metrics) -> None:
        callback(kind, metrics)
        for name, value in metrics.items():
            if isinstance(value, float):
                writer.add_scalar(f"{kind}/{name}", value, metrics["step"])
        writer.flush()

    return write
