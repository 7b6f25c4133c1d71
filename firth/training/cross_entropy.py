"""Cross-entropy over a large vocabulary without storing all logits.

    P  positions     R  positions per chunk     E  hidden size     V  vocabulary size

Logits and their gradient are computed in chunks of positions, so that no (P, V) tensor is stored in
full precision. On a GPU, a Triton kernel computes everything between the matrix products
(`triton_cross_entropy.py`), and the vocabulary is padded so that each row of logits is aligned for
the tensor cores; padding has no probability and no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from firth.training.triton_cross_entropy import triton_cross_entropy
from firth.utils.devices import device_spec, has_triton

MAX_LOGITS = {"cpu": 1 << 24, "cuda": 5 << 27}  # in memory at once
MAX_CPU_ROWS = 512  # of a chunk in float32; larger ones fit into no cache
ALIGNMENT = {
    "cpu": 1,
    "cuda": 64,
}  # V is padded to a multiple of this; chunks have a multiple of rows

ChunkLoss = tuple[Tensor, Tensor, Tensor | None]  # loss, number of correct predictions, grad (R, V)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        wanted: Sequence[bool],  # which of the first three need a gradient
    ) -> tuple[Tensor, Tensor]:
        dtype, device, vocab_size = hidden.dtype, hidden.device, len(matrix)
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        kind = device_spec(device).type
        padding = -vocab_size % ALIGNMENT.get(kind, 1)
        with torch.autocast(device.type, enabled=False):
            h, w, shift = hidden.to(dtype), matrix.to(dtype), bias
            if padding:
                w = pad(w, (0, 0, 0, padding))
                shift = pad(bias, (0, padding)) if bias is not None else None
            loss = torch.zeros((), dtype=wide, device=device)
            right = torch.zeros((), dtype=torch.long, device=device)
            gradients = (
                torch.empty_like(hidden) if wanted[0] else None,
                torch.zeros(w.shape, dtype=wide, device=device) if wanted[1] else None,
                torch.zeros(len(w), dtype=wide, device=device) if wanted[2] else None,
            )
            rows, chunk_loss = _chunk_rows(len(h), len(w), kind, dtype), _implementation(device)
            buffer = h.new_empty(min(rows, len(h)), len(w))  # new memory is slow on a CPU
            for begin in range(0, len(h), rows):
                chunk = slice(begin, begin + rows)
                logits = torch.mm(h[chunk], w.t(), out=buffer[: len(h) - begin])
                part, num_correct, grad = chunk_loss(
                    logits, shift, targets[chunk], vocab_size, any(wanted)
                )
                loss += part
                right += num_correct
                if grad is not None:
                    _add_gradients(grad, h, w, chunk, gradients)
        ctx.save_for_backward(*gradients)
        ctx.mark_non_differentiable(right)
        ctx.kinds = matrix.dtype, vocab_size
        return loss, right

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        hidden, matrix, bias = ctx.saved_tensors
        scale, (dtype, vocab_size) = upstream[0], ctx.kinds
        return (
            None if hidden is None else hidden.mul_(scale.to(hidden.dtype)),
            None if matrix is None else matrix[:vocab_size].mul_(scale).to(dtype),
            None if bias is None else bias[:vocab_size].mul_(scale),
            *(None, None),
        )


def _chunk_rows(positions: int, vocab_size: int, device: str, dtype: torch.dtype) -> int:
    """Return the number of positions per chunk: all chunks have about the same.

    >>> _chunk_rows(32_768, 50_304, "cuda", torch.bfloat16)
    10944
    >>> _chunk_rows(5, 1 << 30, "cpu", torch.float32), _chunk_rows(600, 99, "cpu", torch.float32)
    (1, 300)
    """
    chunks = max(1, -(-positions * vocab_size // MAX_LOGITS.get(device, MAX_LOGITS["cpu"])))
    if device == "cpu" and dtype == torch.float32:
        chunks = max(chunks, -(-positions // MAX_CPU_ROWS))
    rows, step = max(1, -(-positions // chunks)), ALIGNMENT.get(device, 1)
    return -(-rows // step) * step


def _add_gradients(
    grad: Tensor,
    hidden: Tensor,
    matrix: Tensor,
    chunk: slice,
    gradients: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> None:
    """Add the contribution of one chunk, given the gradient of its logits."""
    for_hidden, for_matrix, for_bias = gradients
    narrow = grad.to(hidden.dtype)
    if for_hidden is not None:
        for_hidden[chunk] = (narrow @ matrix).to(for_hidden.dtype)
    if for_matrix is not None and for_matrix.dtype == narrow.dtype:
        for_matrix.addmm_(narrow.t(), hidden[chunk])
    elif for_matrix is not None:
        for_matrix += narrow.t() @ hidden[chunk]
    if for_bias is not None:
        for_bias += grad.sum(0, dtype=for_bias.dtype)


def _torch_cross_entropy(
    logits: Tensor, bias: Tensor | None, targets: Tensor, vocab_size: int, needs_grad: bool
) -> ChunkLoss:
    """Compute the loss of some rows of logits and its gradient: softmax minus one-hot targets.

    The logits are overwritten.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if bias is not None:
        wide += bias
    wanted = wide.gather(-1, targets[:, None])  # (R, 1)
    largest = wide.amax(-1, keepdim=True)
    right = (wanted >= largest).sum()  # no token has a higher logit
    weights = wide.sub_(largest).exp_()
    total = weights.sum(-1, keepdim=True)  # (R, 1)
    loss = (total.log() + largest - wanted).sum()
    if not needs_grad:
        return loss, right, None
    probs = weights.div_(total)
    return loss, right, probs.scatter_add_(-1, targets[:, None], -torch.ones_like(total))


def _implementation(device: torch.device) -> Callable[..., ChunkLoss]:
    """Return the Triton kernel where it runs, else the torch fallback."""
    return triton_cross_entropy if has_triton(device_spec(device)) else _torch_cross_entropy


def cross_entropy(
    hidden: Tensor, matrix: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of hidden states (P, E) with an output matrix (V, E), and the number
    of correct predictions.

    >>> hidden, matrix = torch.eye(2), torch.eye(2) * 9
    >>> loss, num_correct = cross_entropy(hidden, matrix, None, torch.tensor([0, 0]))
    >>> round(float(loss), 3), int(num_correct)
    (9.0, 1)
    """
    grad_enabled = torch.is_grad_enabled()
    wanted = [
        grad_enabled and part is not None and part.requires_grad for part in (hidden, matrix, bias)
    ]
    return _CrossEntropy.apply(hidden, matrix, bias, targets, wanted)  # type: ignore[no-untyped-call]
