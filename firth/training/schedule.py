"""Schedules: the learning rate, sequence length and batch size as functions of training progress.

Progress goes from 0 to 1. A learning-rate schedule maps it to a multiplier of the peak learning
rate, from 0 to 1; `StagedValue` maps it to a size: the length of sequences, or of batches.

Step i (from 0) of n has the learning rate at (i + 1) / n during warm-up, afterwards at i / n: the
first step is above 0, and the last one above the minimum. Sizes are those at (i + 1) / n.

    linear ╱╲   cosine ╱⌒╲   wsd ╱▔▔╲   slanted: linear, but up from the minimum   constant ╱▔▔▔
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from firth.utils.errors import UsageError


def linear(progress: float, warmup: float = 0.1, min_ratio: float = 0.0) -> float:
    """Rise linearly to 1 during the warm-up, then fall linearly to `min_ratio`.

    >>> [linear(progress, warmup=0.2) for progress in (0.1, 0.2, 0.6, 1)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return min_ratio + (1 - min_ratio) * (1 - _elapsed(progress, warmup))


def cosine(progress: float, warmup: float = 0.1, min_ratio: float = 0.1) -> float:
    """Rise linearly to 1, then follow half a cosine down to `min_ratio` (Loshchilov & Hutter 2017,
    without restarts); GPT-3 ends at 0.1 (Brown et al. 2020, appendix B).

    >>> [round(cosine(progress, warmup=0.2), 3) for progress in (0.1, 0.2, 0.6, 1)]
    [0.5, 1.0, 0.55, 0.1]
    """
    if progress < warmup:
        return progress / warmup
    return min_ratio + (1 - min_ratio) * (1 + math.cos(math.pi * _elapsed(progress, warmup))) / 2


def wsd(progress: float, warmup: float = 0.1, min_ratio: float = 0.0, decay: float = 0.2) -> float:
    """Warm up, stay at 1, then fall linearly during the last `decay` fraction of the run (warmup-
    stable-decay; Hu et al. 2024, MiniCPM, section 4). The stable part can be prolonged later.

    >>> [round(wsd(progress), 3) for progress in (0.05, 0.1, 0.8, 0.9, 1)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return min_ratio + (1 - min_ratio) * (1 - _elapsed(progress, max(warmup, 1 - decay)))


def slanted(progress: float, warmup: float = 0.1, min_ratio: float = 1 / 32) -> float:
    """Rise linearly *from `min_ratio`* to 1, then fall linearly back: ULMFiT's slanted triangle
    (Howard & Ruder 2018, equation 3). In their terms, `cut_frac = warmup`, `ratio = 1 / min_ratio`.

    >>> [slanted(progress, warmup=0.2, min_ratio=0.5) for progress in (0, 0.1, 0.2, 0.6, 1)]
    [0.5, 0.75, 1.0, 0.75, 0.5]
    """
    return min_ratio + (1 - min_ratio) * linear(progress, warmup)


def constant(progress: float, warmup: float = 0.1, min_ratio: float = 0.0) -> float:
    """Rise linearly to 1 during the warm-up and stay there; `min_ratio` has no effect.

    >>> [constant(progress, warmup=0.2) for progress in (0.1, 0.2, 1)]
    [0.5, 1.0, 1.0]
    """
    return min(1.0, progress / warmup) if warmup else 1.0


SCHEDULES: dict[str, Callable[[float, float, float], float]] = {
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
    "slanted": slanted,
    "constant": constant,
}


def lr_multiplier(name: str, progress: float, warmup: float, min_ratio: float) -> float:
    """Return the named schedule's multiplier of the peak learning rate; `warmup` is a fraction.

    >>> lr_multiplier("linear", 0.05, warmup=0.1, min_ratio=0.0)
    0.5
    """
    if name not in SCHEDULES:
        raise UsageError(f"Unknown schedule {name!r}; choose one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name](progress, warmup, min_ratio)


def warmup_fraction(warmup: float, step: int, progress: float) -> float:
    """Return the warm-up as a fraction of the run, at `step` (from 1).

    Below 1, `warmup` is that fraction; otherwise it is a number of steps, and the length of the run
    in steps is estimated from the progress so far (exact if all steps make the same progress).

    >>> warmup_fraction(0.1, step=50, progress=0.05), warmup_fraction(20, step=50, progress=0.05)
    (0.1, 0.02)
    """
    return warmup if warmup < 1 else min(1.0, warmup * progress / step)


def _elapsed(progress: float, start: float) -> float:
    """Return the elapsed fraction, from 0 to 1, of the run after `start`."""
    return (progress - start) / (1 - start) if progress > start else 0.0


@dataclass(frozen=True)
class StagedValue:
    """A size that changes in stages during the run.

    Starting with short sequences is cheaper: BERT trained on 128 tokens for the first 90 % of its
    steps and on 512 after (Devlin et al. 2019, appendix A.2).

    >>> stages = StagedValue.parse("128:0.9,512")
    >>> [stages.at((step + 1) / 10) for step in range(10)]
    [128, 128, 128, 128, 128, 128, 128, 128, 128, 512]
    >>> stages.largest
    512
    >>> StagedValue.parse("128").at(0.5)
    128
    """

    sizes: tuple[int, ...]
    ends: tuple[float, ...]  # progress at which each stage ends (inclusive); the last is 1

    @classmethod
    def parse(cls, text: str) -> StagedValue:
        """Parse `size:end,size:end,…,size`; the last size holds until the end of the run."""
        stages = [_STAGE.fullmatch(stage.strip()) for stage in text.split(",")]
        if not all(stages) or not all(stage and stage["end"] for stage in stages[:-1]):
            raise _invalid_stages(text)
        sizes = tuple(int(stage["size"]) for stage in stages if stage)
        ends = tuple(float(stage["end"] or 1) for stage in stages if stage)
        increasing = all(a < b for a, b in zip((0.0, *ends), ends, strict=False))
        if not increasing or ends[-1] != 1:
            raise _invalid_stages(text)
        return cls(sizes, ends)

    def at(self, progress: float) -> int:
        """Return the size for the step that ends at this progress."""
        return self.sizes[bisect_left(self.ends, min(progress, 1.0))]

    @property
    def largest(self) -> int:
        """The largest size of the run."""
        return max(self.sizes)


@dataclass(frozen=True)
class ScheduledNumber:
    """An option that changes during the run: linearly, or in stages like a length.

    >>> linear, staged = map(ScheduledNumber.parse, ("0.3-0.1", "0:0.3,1"))
    >>> linear.at(0.5), staged.at(0.3), staged.at(0.31)
    (0.2, 0.0, 1.0)
    """

    numbers: tuple[float, ...]
    ends: tuple[float, ...] = ()  # progress at which each stage ends; none: linear

    @classmethod
    def parse(cls, text: str) -> ScheduledNumber | None:
        """Parse `first-last` or `number:end,…,number`; None if it is something else."""
        if found := re.fullmatch(rf"({_NUMBER})-({_NUMBER})", text):
            return cls(tuple(map(float, found.groups())))
        stages = [
            re.fullmatch(rf"({_NUMBER})(?::({_NUMBER}))?", stage) for stage in text.split(",")
        ]
        numbers = tuple(float(stage[1]) for stage in stages if stage)
        ends = tuple(float(stage[2] or 1) for stage in stages if stage)
        increasing = all(a < b for a, b in zip((0.0, *ends), ends, strict=False))
        return cls(numbers, ends) if all(stages) and increasing and ends[-1] == 1 else None

    def at(self, progress: float) -> float:
        """Return the number for the step that ends at this progress."""
        if self.ends:
            return self.numbers[bisect_left(self.ends, min(progress, 1.0))]
        first, last = self.numbers
        return first + (last - first) * progress


_NUMBER = r"[0-9]*\.?[0-9]+(?:e-?[0-9]+)?"
_STAGE = re.compile(r"(?P<size>[1-9][0-9]*)(:(?P<end>[0-9]*\.?[0-9]+))?")


def _invalid_stages(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a size or a list of stages; write 128, or 128:0.9,512 for 128 during the "
        "first 0.9 of the run and 512 after."
    )
