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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A weight that Muon trains."""

    weight: nn.Parameter
    momentum: Tensor  # the running mean of the gradients
    splits: tuple[int, ...]  # the rows of each matrix that is fused into this weight
    scale: float  # of the rate


class Part(NamedTuple):
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

        With `finite`, a truth on the device, nothing changes unless that holds. What all matrices
        need is asked for at once: a GPU would otherwise wait for hundreds of small requests.
        """
        batches: dict[tuple[float, ...], list[Part]] = defaultdict(list)
        for part in self._parts(rate, finite):
            batches[(*sorted(part.weight.shape), part.rate)].append(part)
        for (*_, longer, own), parts in batches.items():
            shrink, size = own * self.decay, -own * 0.2 * math.sqrt(longer)
            updates, weights = _updates(parts), [part.weight for part in parts]
            if finite is None:
                torch._foreach_mul_(weights, 1 - shrink)
            else:
                updates = updates * finite
                torch._foreach_mul_(weights, 1 - shrink * finite)
            torch._foreach_add_(weights, _as_they_stood(updates, parts), alpha=size)

    def _parts(self, rate: float, finite: Tensor | None) -> Iterator[Part]:
        """Take the gradients into the momentum, and look ahead with it (Nesterov)."""
        matrices = [matrix for matrix in self.matrices.values() if matrix.weight.grad is not None]
        if not matrices:
            return
        momenta = [matrix.momentum for matrix in matrices]
        gradients = [_gradient(matrix, finite) for matrix in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - self.momentum)
        directions = torch._foreach_lerp(gradients, momenta, self.momentum)
        for matrix, direction in zip(matrices, directions, strict=True):
            weights = matrix.weight.split_with_sizes(matrix.splits)
            for pair in zip(weights, direction.split_with_sizes(matrix.splits), strict=True):
                yield Part(*pair, rate * matrix.scale)


def _gradient(matrix: Matrix, finite: Tensor | None) -> Tensor:
    """That of a weight; where not all are finite the momentum, which then stays as it is."""
    gradient = matrix.weight.grad
    assert gradient is not None
    return gradient if finite is None else gradient.where(finite, matrix.momentum)


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


def _updates(parts: Sequence[Part]) -> Tensor:
    """The orthogonal directions of matrices, lying or standing, all laid down."""  # (N, S, L)
    lying = torch.stack([d.mT if _stands(d) else d for _, d, _ in parts])
    return orthogonalise(lying.to(_precision(lying.device)))


def _as_they_stood(updates: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The updates of matrices, each as it lies or stands, in the weights' own precision."""
    pairs = zip(updates.to(parts[0].weight.dtype), parts, strict=True)
    return [update.mT if _stands(part.weight) else update for update, part in pairs]


def _stands(matrix: Tensor) -> bool:
    return matrix.size(0) > matrix.size(1)


def _precision(device: torch.device) -> torch.dtype:
    """The iterations bear bfloat16. A processor with AMX is three times as fast in it as in
    float32, with AVX-512 alone up to five times slower, and with neither a hundred times.
    """
    native = device.type != "cpu" or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32
