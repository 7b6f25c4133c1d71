"""Muon: momentum whose update is made orthogonal, for the matrices of the blocks.

An update of momentum is dominated by few directions. Muon (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon) replaces U S Vᵀ, the update's singular value
decomposition, by about U Vᵀ, so that every direction is learned at the same pace. The result is
scaled so that its entries are about as large as AdamW's (Liu et al. 2025, "Muon is scalable for LLM
training", section 2.2): both then take the same learning rate and decay.

Shapes: N matrices in a batch, S their shorter side, L their longer side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight that Muon trains."""

    weight: nn.Parameter
    momentum: Tensor  # the running mean of the gradients
    splits: tuple[int, ...]  # the rows of each matrix that is fused into this weight
    scale: float  # of the rate


@dataclass(frozen=True)
class Part:
    """One of the matrices fused into a weight, during a step."""

    weight: Tensor
    direction: Tensor
    rate: float


class Muon:
    """Trains matrices; `matrices` by their parameters' names hold the state.

    >>> weight = nn.Parameter(torch.zeros(2, 3))
    >>> matrix = Matrix(weight=weight, momentum=torch.zeros(2, 3), splits=(2,), scale=1.0)
    >>> weight.grad = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.01, 0.0]])
    >>> Muon({"weight": matrix}, momentum=0.95, decay=0.1).step(rate=0.1)
    >>> (weight < -0.02).tolist()  # the small gradient counts about as much as the large one
    [[True, False, False], [False, True, False]]
    """

    def __init__(self, matrices: dict[str, Matrix], momentum: float, decay: float) -> None:
        self.matrices = matrices
        self.momentum = momentum
        self.decay = decay

    @torch.no_grad()
    def step(self, rate: float, finite: Tensor | None = None) -> None:
        """Update every weight that has a gradient; the decay is decoupled as in AdamW.

        With `finite`, a truth on the device, nothing changes unless that holds.
        """
        batches: dict[tuple[int, ...], list[Part]] = defaultdict(list)
        for matrix in self.matrices.values():
            for part in self._parts(matrix, rate * matrix.scale, finite):
                batches[tuple(sorted(part.weight.shape))].append(part)
        holds = 1.0 if finite is None else finite.float()
        for parts in batches.values():
            for part, update in zip(parts, _updates(parts, finite), strict=True):
                size = 0.2 * math.sqrt(max(update.shape))
                part.weight.mul_(1 - part.rate * self.decay * holds)
                part.weight.add_(update, alpha=-part.rate * size)

    def _parts(self, matrix: Matrix, rate: float, finite: Tensor | None) -> list[Part]:
        """Take the gradient into the momentum, and look ahead with it (Nesterov)."""
        gradient, weight = matrix.weight.grad, 1 - self.momentum
        if gradient is None:
            return []
        if finite is None:
            matrix.momentum.lerp_(gradient, weight)
        else:
            gradient = gradient.where(finite, 0.0)
            matrix.momentum.lerp_(gradient, weight * finite)
        direction = gradient.lerp(matrix.momentum, self.momentum).to(_precision(gradient.device))
        weights = matrix.weight.split_with_sizes(matrix.splits)
        directions = direction.split_with_sizes(matrix.splits)
        return [Part(*pair, rate) for pair in zip(weights, directions, strict=True)]


def orthogonalise(matrices: Tensor) -> Tensor:
    """About the nearest matrix with orthogonal rows, for each (S, L) of (N, S, L).

    Newton–Schulz iterations: each applies an odd polynomial to the singular values. Its
    coefficients are Jordan's, which lift small values fast and leave all between 0.68 and 1.21,
    except those below 0.0015 of the matrix's norm.

    >>> torch.linalg.svdvals(orthogonalise(torch.tensor([[[3.0, 0, 0], [0, 0.1, 0]]])))[0].round()
    tensor([1., 1.])
    """
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1), keepdim=True)
    x = matrices / norms.clamp(min=1e-7)  # (N, S, L)
    for _ in range(5):
        gram = x @ x.mT  # (N, S, S)
        polynomial = torch.baddbmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, polynomial, x, beta=3.4445)
    return x


def _updates(parts: Sequence[Part], finite: Tensor | None) -> list[Tensor]:
    """The orthogonal directions, of which all lying and standing (S, L) make one batch."""
    standing = [part.direction.size(0) > part.direction.size(1) for part in parts]
    lying = [
        part.direction.mT if stands else part.direction
        for part, stands in zip(parts, standing, strict=True)
    ]
    updates = orthogonalise(torch.stack(lying))
    if finite is not None:
        updates = updates * finite
    return [
        update.mT if stands else update for update, stands in zip(updates, standing, strict=True)
    ]


def _precision(device: torch.device) -> torch.dtype:
    """The iterations bear bfloat16. A processor with AMX is three times as fast in it as in
    float32, with AVX-512 alone up to five times slower, and with neither a hundred times.
    """
    native = device.type != "cpu" or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32
