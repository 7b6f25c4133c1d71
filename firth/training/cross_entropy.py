"""Cross-entropy over a large vocabulary without ever holding all of its scores.

    P  positions     E  width     V  vocabulary

Scores are made for some rows at a time, and their gradient with them, so that no tensor of
(positions x vocabulary) numbers exists in full precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SCORES = 1 << 24  # numbers held at a time


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
        wants = hidden.requires_grad or matrix.requires_grad
        wide = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            h, w = hidden.to(dtype), matrix.to(dtype)
            loss = torch.zeros((), dtype=wide, device=hidden.device)
            right = torch.zeros((), dtype=torch.long, device=hidden.device)
            gradients = (
                torch.empty_like(hidden) if wants else None,
                torch.zeros(matrix.shape, dtype=wide, device=matrix.device) if wants else None,
                torch.zeros_like(bias, dtype=wide) if wants and bias is not None else None,
            )
            rows = max(1, SCORES // matrix.shape[0])
            for begin in range(0, len(h), rows):
                some = slice(begin, begin + rows)
                scores = (h[some] @ w.t()).to(wide)
                if bias is not None:
                    scores += bias
                right += (scores.argmax(-1) == targets[some]).sum()
                total = scores.logsumexp(-1, keepdim=True)  # (rows, 1)
                wanted = scores.gather(-1, targets[some, None])
                loss += (total - wanted).sum()
                if wants:
                    _gradient(scores.sub_(total).exp_(), h, w, targets, some, gradients)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(right)
        ctx.dtypes = hidden.dtype, matrix.dtype
        return loss, right

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        hidden, matrix, bias = ctx.saved_tensors
        scale = upstream[0]
        return (
            hidden.mul_(scale.to(hidden.dtype)),
            matrix.mul_(scale).to(ctx.dtypes[1]),
            None if bias is None else bias.mul_(scale),
            None,
        )


def _gradient(
    shares: Tensor,
    hidden: Tensor,
    matrix: Tensor,
    targets: Tensor,
    some: slice,
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """Add what these rows contribute; the gradient of a score is its share, less one if right."""
    for_hidden, for_matrix, for_bias = gradients
    assert for_hidden is not None
    assert for_matrix is not None
    shares.scatter_add_(-1, targets[some, None], -torch.ones_like(shares[:, :1]))
    if for_bias is not None:
        for_bias += shares.sum(0)
    narrow = shares.to(hidden.dtype)
    for_hidden[some] = (narrow @ matrix).to(for_hidden.dtype)
    for_matrix += narrow.t() @ hidden[some]


def cross_entropy(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The summed loss of positions (P, E) against an output matrix (V, E), and how many are right.

    >>> loss, right = cross_entropy(torch.eye(2), torch.eye(2) * 9, None, torch.tensor([0, 0]))
    >>> round(float(loss), 3), int(right)
    (9.0, 1)
    """
    return _CrossEntropy.apply(hidden, matrix, bias, targets)  # type: ignore[no-untyped-call]
