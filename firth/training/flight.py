"""The figures of a step, on their way from a GPU: the next step begins before they are here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from firth.models.journey import Fetched
from firth.training.state import State

RIGHT = " right"  # behind the name of a loss: the share that was predicted rightly


class Sums(NamedTuple):
    """What a step added up, still where it was computed."""

    values: dict[str, Tensor]  # the losses by name, and how many predictions were right
    counts: dict[str, int]
    weights: dict[str, float]

    def losses(self, values: Sequence[float]) -> dict[str, float]:
        """The figures of a step, from the sums that have arrived."""
        means = {
            name: value / self.counts[name.removesuffix(RIGHT)]
            for name, value in zip(self.values, values, strict=True)
        }
        whole = sum(weight * means[name] for name, weight in self.weights.items())
        return {"loss": whole, **means}


class Flight(NamedTuple):
    """A step that is done as far as the loop is concerned; its figures are on their way."""

    state: State  # as the step left it
    progress: float
    rate: float
    aside: bool
    sums: Sums
    figures: Fetched  # (sums + 1,) behind them the norm of the gradient

    def arrive(self) -> list[float]:
        """The figures, once they are here."""
        return list(self.figures.here().tolist())
