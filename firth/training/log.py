"""What a run says while it learns: a line of figures for each logged step, and notes for people."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from firth.errors import Misuse
from firth.files import atomic_file

if TYPE_CHECKING:
    from firth.training.state import State

FIRST = 10  # steps that are all logged
OFTEN = 1.0  # seconds between two lines, where nothing else is asked for

Figures = dict[str, Any]
Listener = Callable[[str, Figures], None]


class Log:
    """Writes `metrics.jsonl`, and tells whoever listens.

    A listener gets the kind of news (step, validation, note) and its figures.
    """

    def __init__(
        self,
        path: Path,
        every: int,
        listener: Listener,
        speed: Callable[[int, float], Figures] = lambda tokens, seconds: {},
    ) -> None:
        """`speed` says what so many tokens in so many seconds mean: MFU and the like."""
        self.path, self.every, self.listener, self.speed = path, every, listener, speed
        self._since: list[dict[str, float]] = []
        self._last, self._tokens, self._seconds = 0.0, -1, 0.0  # -1: the next line has no pace

    def resume(self, step: int) -> None:
        """Forget what was written after a step: it will be done again."""
        self._since, self._tokens, self._seconds = [], -1, 0.0
        if not self.path.is_file():
            return
        kept = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
        with atomic_file(self.path) as file:
            file.write("".join(f"{line}\n" for line in kept).encode())

    def step(
        self, state: State, progress: float, terms: dict[str, float], rate: float, norm: float
    ) -> None:
        """A step is done; losses are the mean of those since the last line."""
        self._since.append(terms)
        now = time.monotonic()
        auto = state.step <= FIRST or now - self._last >= OFTEN
        if state.step % self.every if self.every else not auto:
            return
        names = dict.fromkeys(name for terms in self._since for name in terms)
        mean = {name: fmean(t[name] for t in self._since if name in t) for name in names}
        tokens, seconds = state.tokens - self._tokens, state.seconds - self._seconds
        figures = {"step": state.step, **mean, "rate": rate, "norm": norm, "tokens": state.tokens}
        figures |= {"seconds": state.seconds, "epoch": state.position.epoch}
        if seconds > 0 and self._tokens >= 0:
            figures |= {"tokens_per_second": tokens / seconds, **self.speed(tokens, seconds)}
        figures["progress"] = progress
        self._last, self._since = now, []
        self._tokens, self._seconds = state.tokens, state.seconds
        self._write("step", figures)

    def validation(self, state: State, figures: Figures) -> None:
        """A validation is done."""
        self._write("validation", {"step": state.step, "tokens": state.tokens, **figures})
        self._tokens = -1  # the time it took is not the next step's

    def note(self, text: str) -> None:
        """Something a person should know."""
        self._write("note", {"note": text})

    def _write(self, kind: str, figures: Figures) -> None:
        self.listener(kind, figures)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **figures}) + "\n")
        except OSError:  # a full disk: figures are lost, the run is not
            return


def _step(line: str) -> int:
    try:
        return int(json.loads(line).get("step", 0))
    except ValueError:  # the last line of a run that was killed
        return 1 << 62


def tensorboard(folder: Path, listener: Listener) -> Listener:
    """A listener that also writes what TensorBoard shows."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise Misuse(
            "TensorBoard is not installed; `pip install 'firth[track]'` brings it."
        ) from error
    writer = SummaryWriter(folder)

    def tell(kind: str, figures: Figures) -> None:
        listener(kind, figures)
        for name, value in figures.items():
            if isinstance(value, float):
                writer.add_scalar(f"{kind}/{name}", value, figures["step"])
        writer.flush()

    return tell
