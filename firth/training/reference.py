"""One AdamW step in plain tensors: the reference that tests compare the optimizer with."""

from __future__ import annotations

from torch import Tensor

from firth.training.optim import OptimizerConfig


def adamw_step(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: int, config: OptimizerConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new weight and moments of step 1, 2, … (Loshchilov & Hutter 2019, algorithm 2).

    >>> import torch
    >>> zero, config = torch.zeros(1), OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
    >>> adamw_step(torch.ones(1), torch.ones(1), zero, zero, 1, config)[0]  # 1 - 0.1 * 0.5 - 0.1
    tensor([0.8500])
    """
    mean = config.beta1 * mean + (1 - config.beta1) * grad
    square = config.beta2 * square + (1 - config.beta2) * grad**2
    direction = mean / (1 - config.beta1**step)  # bias correction
    scale = (square / (1 - config.beta2**step)).sqrt() + config.eps
    update = direction / scale + config.weight_decay * weight
    return weight - config.learning_rate * update, mean, square
