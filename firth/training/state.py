"""The state of a training run, and the batches it plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from firth.data.sampler import SamplerPosition
from firth.objectives.batch import Batch


@dataclass
class TrainingState:
    """The state of a run apart from the weights and the optimizer."""

    step: int = 0
    position: SamplerPosition = field(default_factory=SamplerPosition)
    planned_tokens: int = 0  # capacity of the batches so far
    tokens: int = 0  # tokens in the batches so far
    seconds: float = 0.0
    micro_batch_tokens: int = 0  # tokens of a micro-batch; 0: the whole batch
    dropout_slices: int = 0  # parts of a batch with dropout masks of their own; 0: one per rank
    threads: int = 0  # CPU threads: floating-point sums depend on their number
    onednn: bool = True  # whether torch uses oneDNN on a CPU: sums depend on it, too
    lr_factor: float = 1.0  # multiplies the learning rate, after rollbacks
    loss_scale: float = 2.0**16  # of fp16, where small gradients would underflow to zero
    scaled_steps: int = 0  # consecutive steps with finite gradients at this loss scale
    skipped: int = 0  # consecutive steps without a finite gradient
    rollbacks: int = 0  # to an earlier checkpoint
    validated: int = 0  # validations done
    best_score: float = -math.inf  # of all validations
    lowest_loss: float = math.inf  # of all validations
    stale_validations: int = 0  # consecutive validations without a better score or a lower loss
    history: list[float] = field(default_factory=list)  # mean loss of each part of the run
    loss_sum: tuple[float, int] = (0.0, 0)  # sum and number of losses in the current part
    plateau_reported: bool = False

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainingState:
        """Build the state from the JSON values of a checkpoint."""
        best = -math.inf if values["best_score"] is None else values["best_score"]
        lowest = math.inf if values["lowest_loss"] is None else values["lowest_loss"]
        decoded = {"position": SamplerPosition(*values["position"]), "best_score": best}
        decoded |= {"loss_sum": tuple(values["loss_sum"]), "lowest_loss": lowest}
        return cls(**{**values, **decoded})

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, which have no infinity."""
        extremes = {"best_score": self.best_score, "lowest_loss": self.lowest_loss}
        plain = {name: None if math.isinf(x) else x for name, x in extremes.items()}
        return {**asdict(self), "position": list(self.position), **plain}


@dataclass(frozen=True)
class PlannedBatch:
    """A batch, and the position of the run after it."""

    batch: Batch
    next_position: SamplerPosition
    planned_tokens: int
    is_replay: bool = False  # pre-training text replayed during fine-tuning


BatchPlanner = Callable[[TrainingState, Callable[[TrainingState], float]], Iterator[PlannedBatch]]
