"""Schedules: what changes over a run, as pure functions of how far the run has come.

Progress goes from 0 to 1. A learning-rate schedule turns it into the multiplier of the peak rate,
itself from 0 to 1; `Stages` turns it into a size: the length of sequences, or of batches.

The training loop asks before each step with `progress = (step + 1) / steps`, steps counted from 0:
the first step then has a rate above 0, the step that ends the warm-up has the full rate, and the
last step stands on the floor.

    linear ╱╲   cosine ╱⌒╲   wsd ╱▔▔╲   slanted: linear, but up from the floor   constant ╱▔▔▔
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from firth.errors import Misuse


def linear(progress: float, warmup: float = 0.1, floor: float = 0.0) -> float:
    """Up to 1 over the warm-up, then down to the floor, both in a straight line.

    >>> [linear(progress, warmup=0.2) for progress in (0.1, 0.2, 0.6, 1)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return floor + (1 - floor) * (1 - _part(progress, warmup))


def cosine(progress: float, warmup: float = 0.1, floor: float = 0.1) -> float:
    """Up to 1 in a straight line, then half a cosine down (Loshchilov & Hutter 2017, without
    restarts); GPT-3 stops at a tenth (Brown et al. 2020, appendix B).

    >>> [round(cosine(progress, warmup=0.2), 3) for progress in (0.1, 0.2, 0.6, 1)]
    [0.5, 1.0, 0.55, 0.1]
    """
    if progress < warmup:
        return progress / warmup
    return floor + (1 - floor) * (1 + math.cos(math.pi * _part(progress, warmup))) / 2


def wsd(progress: float, warmup: float = 0.1, floor: float = 0.0, decay: float = 0.2) -> float:
    """Warm-up, stable, decay: at 1 until the last `decay` part of the run, which goes down in a
    straight line (Hu et al. 2024, MiniCPM, section 4). The stable part can be prolonged later.

    >>> [round(wsd(progress), 3) for progress in (0.05, 0.1, 0.8, 0.9, 1)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return floor + (1 - floor) * (1 - _part(progress, max(warmup, 1 - decay)))


def slanted(progress: float, warmup: float = 0.1, floor: float = 1 / 32) -> float:
    """The slanted triangle of ULMFiT (Howard & Ruder 2018, equation 3): a straight line up *from
    the floor*, a longer one down to it. In their terms, `cut_frac = warmup`, `ratio = 1 / floor`.

    >>> [slanted(progress, warmup=0.2, floor=0.5) for progress in (0, 0.1, 0.2, 0.6, 1)]
    [0.5, 0.75, 1.0, 0.75, 0.5]
    """
    return floor + (1 - floor) * linear(progress, warmup)


def constant(progress: float, warmup: float = 0.1, floor: float = 0.0) -> float:
    """Up to 1 over the warm-up, and there it stays: `floor` has nothing to say.

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


def multiplier(name: str, progress: float, warmup: float, floor: float) -> float:
    """What the named schedule makes of the peak rate; the warm-up is a part of the run.

    >>> multiplier("linear", 0.05, warmup=0.1, floor=0.0)
    0.5
    """
    if name not in SCHEDULES:
        raise Misuse(f"There is no schedule {name!r}: choose one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name](progress, warmup, floor)


def _part(progress: float, start: float) -> float:
    """How much of what follows the start is over, from 0 to 1."""
    return (progress - start) / (1 - start) if progress > start else 0.0


@dataclass(frozen=True)
class Stages:
    """A size that changes at given parts of the run.

    Short sequences first cost less: BERT trained on 128 tokens for the first 90 % of its steps and
    on 512 after (Devlin et al. 2019, appendix A.2).

    >>> stages = Stages.parse("128:0.9,512")
    >>> [stages.at((step + 1) / 10) for step in range(10)]
    [128, 128, 128, 128, 128, 128, 128, 128, 128, 512]
    >>> stages.largest
    512
    >>> Stages.parse("128").at(0.5)
    128
    """

    sizes: tuple[int, ...]
    ends: tuple[float, ...]  # the progress up to which each holds, itself included; the last is 1

    @classmethod
    def parse(cls, text: str) -> Stages:
        """Read `size:end,size:end,…,size`; the last size holds to the end of the run."""
        stages = [_STAGE.fullmatch(stage.strip()) for stage in text.split(",")]
        if not all(stages) or not all(stage and stage["end"] for stage in stages[:-1]):
            raise _not_stages(text)
        sizes = tuple(int(stage["size"]) for stage in stages if stage)
        ends = tuple(float(stage["end"] or 1) for stage in stages if stage)
        increasing = all(a < b for a, b in zip((0.0, *ends), ends, strict=False))
        if not increasing or ends[-1] != 1:
            raise _not_stages(text)
        return cls(sizes, ends)

    def at(self, progress: float) -> int:
        """The size for the step that brings the run to this progress."""
        return self.sizes[bisect_left(self.ends, min(progress, 1.0))]

    @property
    def largest(self) -> int:
        """The largest size of the run, for which positions and memory must suffice."""
        return max(self.sizes)


_STAGE = re.compile(r"(?P<size>[1-9][0-9]*)(:(?P<end>[0-9]*\.?[0-9]+))?")


def _not_stages(text: str) -> Misuse:
    return Misuse(
        f"{text!r} does not say which size holds when: write 128, or 128:0.9,512 "
        "for 128 in the first 0.9 of the run and 512 after."
    )
