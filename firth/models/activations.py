"""Activations, and gated activations (GLU)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu-tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
    "silu": silu,
}


def gated_activation(up: Tensor, activation: str) -> Tensor:
    """Apply an activation to the first half of the columns and multiply by the second half.

    >>> import torch
    >>> gated_activation(torch.tensor([[2.0, -1.0, 3.0, 4.0]]), "relu").tolist()
    [[6.0, 0.0]]
    """  # (N, 2F) -> (N, F)
    x, gate = up.chunk(2, dim=-1)
    return ACTIVATIONS[activation](x) * gate
