"""Integrated gradients: which token embeddings an output depends on (Sundararajan et al. 2017).

    score of token i = (x_i - x'_i) · ∫ ∂F(x' + t (x - x')) / ∂x_i dt,  t from 0 to 1

for an output F of the embeddings x and a baseline x'. The scores add up to F(x) - F(x')
("completeness"), also on each part of the path: F at both ends of a part tells how exact its
integral is, and parts that are not exact enough are halved.

    P  points on the path     T  tokens     E  embedding size
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from firth.inference.batching import nan_error
from firth.utils.rng import Floats

PARTS = 4  # of the path at first: on a single part, errors of tokens may cancel in the sum
NODES = 8  # of the Gauss-Legendre rule on each part of the path
PART_TOLERANCE = 5  # errors of parts may cancel in the sum, up to this
MIN_DIFFERENCE = 0.05  # outputs that differ by less are compared as if they differed by this


@dataclass(frozen=True)
class PathIntegral:
    """The integrated gradients of an input."""

    scores: Floats  # (T,)
    output: float  # F at the input
    baseline_output: float  # F at the baseline
    steps: int  # points at which the gradient was computed

    @property
    def difference(self) -> float:
        """What the scores would add up to if the integral were exact."""
        return self.output - self.baseline_output


def integrated_gradients(
    function: Callable[[Tensor], Tensor],
    inputs: Tensor,
    baseline: Tensor,
    *,
    tolerance: float = 0.01,
    max_steps: int = 2048,
    batch_size: int = 32,
) -> PathIntegral:
    """Integrate the gradients of a function (P, T, E) -> (P,) from a baseline to an input.

    The parts of the path are halved until the sum of all scores is within `tolerance` of the
    difference of the outputs (and those of its parts within `PART_TOLERANCE` times that, together),
    or until the gradient would be computed at more than `max_steps` points.

    >>> weights = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> linear = lambda x: (x * weights).sum((1, 2))
    >>> found = integrated_gradients(linear, torch.ones(2, 2), torch.zeros(2, 2))
    >>> found.scores.round(4).tolist(), found.difference
    ([3.0, 3.0], 6.0)
    """
    path = _Path(function, inputs, baseline, batch_size)
    parts: dict[tuple[float, float], Floats] = {}  # begin and end -> scores
    pending = list(pairwise(np.linspace(0, 1, PARTS + 1).tolist()))
    while True:
        parts |= path.integrate(pending)
        output, baseline_output = path.outputs[1.0], path.outputs[0.0]
        largest = tolerance * max(abs(output - baseline_output), MIN_DIFFERENCE)
        errors = {part: path.error(part, scores) for part, scores in parts.items()}
        total = float(np.sum(list(parts.values()))) - (output - baseline_output)
        inexact = [part for part, error in errors.items() if error > largest / len(parts)]
        inexact.sort(key=errors.__getitem__, reverse=True)
        inexact = inexact[: (max_steps - path.steps) // (2 * NODES)]
        exact = abs(total) <= largest and sum(errors.values()) <= PART_TOLERANCE * largest
        if exact or not inexact:
            break
        for part in inexact:
            del parts[part]
        pending = [half for begin, end in inexact for half in _halves(begin, end)]
    scores = np.sum(list(parts.values()), axis=0)
    return PathIntegral(scores, output, baseline_output, path.steps)


def _halves(begin: float, end: float) -> list[tuple[float, float]]:
    return list(pairwise((begin, (begin + end) / 2, end)))


class _Path:
    """The straight line from the baseline to the input, with the outputs computed so far."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        inputs: Tensor,
        baseline: Tensor,
        batch_size: int,
    ) -> None:
        self.function, self.baseline, self.batch_size = function, baseline, batch_size
        self.direction = inputs - baseline  # (T, E)
        self.outputs: dict[float, float] = {}  # at the ends of parts
        self.steps = 0

    def integrate(self, parts: list[tuple[float, float]]) -> dict[tuple[float, float], Floats]:
        """Compute the scores of each part with the Gauss-Legendre rule."""
        nodes, weights = np.polynomial.legendre.leggauss(NODES)  # on [-1, 1]
        ends = [end for end in dict.fromkeys(np.ravel(parts)) if end not in self.outputs]
        points = [(begin + (end - begin) * (nodes + 1) / 2) for begin, end in parts]
        self.outputs |= dict(zip(ends, self._outputs(np.array(ends)), strict=True))
        rows = self._gradients(np.concatenate(points)).reshape(len(parts), NODES, -1)
        if not np.isfinite([*self.outputs.values(), rows.sum()]).all():
            raise nan_error()
        self.steps += NODES * len(parts)
        return {
            (begin, end): (end - begin) / 2 * (weights @ row)
            for (begin, end), row in zip(parts, rows, strict=True)
        }

    def error(self, part: tuple[float, float], scores: Floats) -> float:
        """How much the sum of a part's scores differs from the change of the output there."""
        return abs(float(scores.sum()) - (self.outputs[part[1]] - self.outputs[part[0]]))

    def _embeddings(self, points: Floats) -> Iterator[Tensor]:
        """Return the embeddings at some points, in batches."""  # (P, T, E)
        for begin in range(0, len(points), self.batch_size):
            at = torch.from_numpy(points[begin : begin + self.batch_size]).to(self.direction)
            yield self.baseline + at[:, None, None] * self.direction

    @torch.no_grad()
    def _outputs(self, points: Floats) -> list[float]:
        return [out for x in self._embeddings(points) for out in self.function(x).tolist()]

    def _gradients(self, points: Floats) -> Floats:
        """Compute the gradient along the path for each token at some points."""
        gradients: list[Floats] = []  # each (T,)
        for x in self._embeddings(points):
            with torch.enable_grad():
                [slope] = torch.autograd.grad(self.function(x.requires_grad_()).sum(), x)
            gradients.extend((slope * self.direction).sum(-1).double().cpu().numpy())
        return np.array(gradients)
