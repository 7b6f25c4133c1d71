"""Metrics of a step whose copy to the host is pending: the next step starts before it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from firth.training.log import ACCURACY
from firth.training.state import TrainingState
from firth.utils.device_transfer import AsyncFetch


class StepSums(NamedTuple):
    """Sums over the predictions of a step, on the device."""

    values: dict[str, Tensor]  # losses and numbers of correct predictions, by name
    counts: dict[str, int]
    weights: dict[str, float]

    def losses(self, values: Sequence[float]) -> dict[str, float]:
        """Return the mean losses and accuracies, given the sums on the host."""
        means = {
            name: value / self.counts[name.removesuffix(ACCURACY)]
            for name, value in zip(self.values, values, strict=True)
        }
        total = sum(weight * means[name] for name, weight in self.weights.items())
        return {"loss": total, **means}


class PendingMetrics(NamedTuple):
    """A finished step whose metrics are still being copied to the host."""

    state: TrainingState  # after the step
    progress: float
    learning_rate: float
    is_replay: bool
    sums: StepSums
    metrics: AsyncFetch  # (sums + 1,) the sums, then the gradient norm

    def wait(self) -> list[float]:
        """Wait for the copy and return the metrics."""
        return list(self.metrics.wait().tolist())
