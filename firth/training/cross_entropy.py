"""Cross-entropy over a large vocabulary without ever holding all of its scores.

    P  positions     R  of them at a time     E  width     V  vocabulary

Scores are made for some rows at a time, and their gradient with them, so that no tensor of
(positions x vocabulary) numbers exists in full precision. On a GPU one kernel does what lies
between the products of matrices (`fused_scores.py`), and the vocabulary is padded, so that every
row of scores begins where the matrix units want it; what is padded has no share in anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from firth.training.fused_scores import score_in_place

SCORES = {"cpu": 1 << 24, "cuda": 5 << 27}  # numbers held at a time
ALIGNED = {"cpu": 1, "cuda": 64}  # the vocabulary is padded to a multiple of this, and rows cut

Scored = tuple[Tensor, Tensor, Tensor | None]  # loss, how many are right, gradient (R, V)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        wanted: Sequence[bool],  # which of the first three learn
    ) -> tuple[Tensor, Tensor]:
        dtype, device, words = hidden.dtype, hidden.device, len(matrix)
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        more = -words % ALIGNED[device.type]
        with torch.autocast(device.type, enabled=False):
            h, w = hidden.to(dtype), pad(matrix.to(dtype), (0, 0, 0, more))
            shift = pad(bias, (0, more)) if bias is not None else None
            loss = torch.zeros((), dtype=wide, device=device)
            right = torch.zeros((), dtype=torch.long, device=device)
            gradients = (
                torch.empty_like(hidden) if wanted[0] else None,
                torch.zeros(w.shape, dtype=wide, device=device) if wanted[1] else None,
                torch.zeros(len(w), dtype=wide, device=device) if wanted[2] else None,
            )
            rows, score = _rows(len(h), len(w), device.type), _scoring(device.type)
            learns = any(wanted)
            for begin in range(0, len(h), rows):
                some = slice(begin, begin + rows)
                lost, found, shares = score(h[some] @ w.t(), shift, targets[some], words, learns)
                loss += lost
                right += found
                if shares is not None:
                    _add(shares, h, w, some, gradients)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(right)
        ctx.kinds = matrix.dtype, words
        return loss, right

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        hidden, matrix, bias = ctx.saved_tensors
        scale, (dtype, words) = upstream[0], ctx.kinds
        return (
            None if hidden is None else hidden.mul_(scale.to(hidden.dtype)),
            None if matrix is None else matrix[:words].mul_(scale).to(dtype),
            None if bias is None else bias[:words].mul_(scale),
            *(None, None),
        )


def _rows(positions: int, words: int, device: str) -> int:
    """How many positions are scored at a time: all parts have about as many.

    >>> _rows(32_768, 50_304, "cuda"), _rows(5, 1 << 30, "cpu"), _rows(0, 7, "cpu")
    (10944, 1, 1)
    """
    parts = max(1, -(-positions * words // SCORES[device]))
    most, step = max(1, -(-positions // parts)), ALIGNED[device]
    return -(-most // step) * step


def _add(
    shares: Tensor,
    hidden: Tensor,
    matrix: Tensor,
    some: slice,
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """Add what some rows contribute to the gradients, given those of their scores."""
    for_hidden, for_matrix, for_bias = gradients
    narrow = shares.to(hidden.dtype)
    if for_hidden is not None:
        for_hidden[some] = (narrow @ matrix).to(for_hidden.dtype)
    if for_matrix is not None:
        for_matrix += narrow.t() @ hidden[some]
    if for_bias is not None:
        for_bias += shares.sum(0, dtype=for_bias.dtype)


def _score(scores: Tensor, bias: Tensor | None, targets: Tensor, words: int, wants: bool) -> Scored:
    """What some rows of scores lose; their gradient is each word's share, less one if right."""
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if bias is not None:
        wide += bias
    wanted = wide.gather(-1, targets[:, None])  # (R, 1)
    right = (wanted >= wide.amax(-1, keepdim=True)).sum()  # no word has a higher score
    total = wide.logsumexp(-1, keepdim=True)  # (R, 1)
    loss = (total - wanted).sum()
    if not wants:
        return loss, right, None
    shares = wide.sub_(total).exp_()
    return loss, right, shares.scatter_add_(-1, targets[:, None], -torch.ones_like(total))


def _scoring(device: str) -> Callable[..., Scored]:
    """How rows of scores become a loss on a device."""
    return score_in_place if device == "cuda" else _score


def cross_entropy(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """The summed loss of positions (P, E) against an output matrix (V, E), and how many are right.

    >>> loss, right = cross_entropy(torch.eye(2), torch.eye(2) * 9, None, torch.tensor([0, 0]))
    >>> round(float(loss), 3), int(right)
    (9.0, 1)
    """
    learns = torch.is_grad_enabled()
    wanted = [learns and part is not None and part.requires_grad for part in (hidden, matrix, bias)]
    return _CrossEntropy.apply(hidden, matrix, bias, targets, wanted)  # type: ignore[no-untyped-call]
