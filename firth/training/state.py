"""Where a run stands, and what it does next."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from firth.objectives.batch import Batch
from firth.text.batches import Position


@dataclass
class State:
    """Where a run stands; with the weights and the optimizer, all there is to know of it."""

    step: int = 0
    position: Position = field(default_factory=Position)
    asked: int = 0  # tokens the batches so far had room for
    tokens: int = 0  # tokens they held
    seconds: float = 0.0
    micro: int = 0  # tokens computed at once; 0: a whole step
    slowed: float = 1.0  # what the rate is multiplied with, after trouble
    skipped: int = 0  # steps in a row without a finite gradient
    returns: int = 0  # times it went back to a checkpoint
    validated: int = 0  # validations done
    best: float = -math.inf  # worth of a validation
    lowest: float = math.inf  # loss of a validation
    stale: int = 0  # validations in a row with neither a better one nor a lower loss
    history: list[float] = field(default_factory=list)  # mean loss of each part of the run
    part: tuple[float, int] = (0.0, 0)  # sum and number of losses of the present part
    named: bool = False  # a plateau was named

    @classmethod
    def restored(cls, values: dict[str, Any]) -> State:
        """From what a checkpoint's JSON holds."""
        best = -math.inf if values["best"] is None else values["best"]
        lowest = math.inf if values.get("lowest") is None else values["lowest"]
        position, part = Position(*values["position"]), tuple(values["part"])
        known = {"position": position, "part": part, "best": best, "lowest": lowest}
        return cls(**{**values, **known})

    def saved(self) -> dict[str, Any]:
        """What a checkpoint's JSON holds."""
        extremes = {"best": self.best, "lowest": self.lowest}
        plain = {name: None if math.isinf(x) else x for name, x in extremes.items()}
        return {**asdict(self), "position": list(self.position), **plain}


@dataclass(frozen=True)
class Planned:
    """A batch, and where the run stands once it is learned."""

    batch: Batch
    after: Position
    asked: int
    aside: bool = False  # a step on something else than the run is about
