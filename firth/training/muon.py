"""Muon: momentum with orthogonalised updates, for the matrices of the blocks.

Momentum updates are dominated by few directions. Muon (Jordan et al. 2024,
https://kellerjordan.github.io/posts/muon) replaces U S Vᵀ, the update's singular value
decomposition, by about U Vᵀ, so that all directions are updated equally. The result is
scaled so that its entries are about as large as AdamW's (Liu et al. 2025, "Muon is scalable for LLM
training", section 2.2): both then use the same learning rate and weight decay.

Shapes: N matrices in a batch, S their shorter side, L their longer side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from firth.utils.devices import device_spec, has_native_bf16
from firth.utils.foreach import foreach


@dataclass(frozen=True, kw_only=True)
class MuonParameter:
    """A weight that Muon updates."""

    weight: nn.Parameter
    momentum: Tensor  # running mean of the gradients
    splits: tuple[int, ...]  # the rows of each matrix that is fused into this weight
    scale: float  # of the learning rate


class MatrixUpdate(NamedTuple):
    """The update of one of the matrices fused into a weight."""

    weight: Tensor
    direction: Tensor
    learning_rate: float


class Muon:
    """Update matrices; `matrices` holds the state by parameter name.

    >>> weight = nn.Parameter(torch.zeros(2, 3))
    >>> matrix = MuonParameter(weight=weight, momentum=torch.zeros(2, 3), splits=(2,), scale=1.0)
    >>> weight.grad = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.01, 0.0]])
    >>> Muon({"weight": matrix}, momentum=0.95, weight_decay=0.1).step(learning_rate=0.1)
    >>> (weight < -0.02).tolist()  # small and large gradients get similar updates
    [[True, False, False], [False, True, False]]
    """

    def __init__(
        self, matrices: dict[str, MuonParameter], momentum: float, weight_decay: float
    ) -> None:
        self.matrices = matrices
        self.momentum = momentum
        self.weight_decay = weight_decay

    @torch.no_grad()
    def step(self, learning_rate: float, finite: Tensor | None = None) -> None:
        """Update every weight that has a gradient, with decoupled weight decay as in AdamW.

        If `finite`, a boolean tensor, is false, change nothing. Matrices of the same shape are
        updated together, to avoid hundreds of small GPU kernels.
        """
        batches: dict[tuple[float, ...], list[MatrixUpdate]] = defaultdict(list)
        for part in self._parts(learning_rate, finite):
            batches[(*sorted(part.weight.shape), part.learning_rate)].append(part)
        for (*_, longer, own), parts in batches.items():
            shrink: float | Tensor = own * self.weight_decay
            size = -own * 0.2 * math.sqrt(longer)
            updates, weights = _updates(parts), [part.weight for part in parts]
            if finite is not None:
                updates, shrink = updates * finite, shrink * finite
            foreach("mul_", weights, 1 - shrink)
            foreach("add_", weights, _match_weights(updates, parts), alpha=size)

    def _parts(self, learning_rate: float, finite: Tensor | None) -> Iterator[MatrixUpdate]:
        """Update the momentum and yield the Nesterov directions."""
        matrices = [matrix for matrix in self.matrices.values() if matrix.weight.grad is not None]
        if not matrices:
            return
        momenta = [matrix.momentum for matrix in matrices]
        gradients = [_gradient(matrix, finite) for matrix in matrices]
        foreach("lerp_", momenta, gradients, 1 - self.momentum)
        directions = foreach("lerp", gradients, momenta, self.momentum)
        for matrix, direction in zip(matrices, directions, strict=True):
            weights = matrix.weight.split_with_sizes(matrix.splits)
            for pair in zip(weights, direction.split_with_sizes(matrix.splits), strict=True):
                yield MatrixUpdate(*pair, learning_rate * matrix.scale)


def _gradient(matrix: MuonParameter, finite: Tensor | None) -> Tensor:
    """Return the gradient; if not finite, the momentum, which then does not change."""
    gradient = matrix.weight.grad
    assert gradient is not None
    return gradient if finite is None else gradient.where(finite, matrix.momentum)


def orthogonalise(matrices: Tensor) -> Tensor:
    """Approximate the nearest matrix with orthogonal rows, for each (S, L) of (N, S, L).

    Newton–Schulz iterations: each applies an odd polynomial to the singular values. Its
    coefficients are Jordan's, which bring all values between 0.68 and 1.21, except those below
    0.0015 of the matrix's norm.

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


def _updates(parts: Sequence[MatrixUpdate]) -> Tensor:
    """Orthogonalise directions, transposed so that rows are the shorter side."""  # (N, S, L)
    wide = torch.stack([d.mT if _is_tall(d) else d for _, d, _ in parts])
    return orthogonalise(wide.to(_precision(wide.device)))


def _match_weights(updates: Tensor, parts: Sequence[MatrixUpdate]) -> list[Tensor]:
    """Transpose updates back to the shape and precision of their weights."""
    pairs = zip(updates.to(parts[0].weight.dtype), parts, strict=True)
    return [update.mT if _is_tall(part.weight) else update for update, part in pairs]


def _is_tall(matrix: Tensor) -> bool:
    return matrix.size(0) > matrix.size(1)


def _precision(device: torch.device) -> torch.dtype:
    """Return bfloat16, which the iterations tolerate, where the device computes it natively.

    A CPU with AMX is three times as fast in it as in float32, one with only AVX-512 up to five
    times slower, and one with neither a hundred times.
    """
    return torch.bfloat16 if has_native_bf16(device_spec(device)) else torch.float32
