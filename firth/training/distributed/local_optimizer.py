"""The optimizer of divided weights: each rank updates its own rows, as ordinary tensors.

AdamW updates every number on its own, so the rows of a rank need nothing of the others. DTensor
itself would dispatch each operation on the host, which took longer than the step of a small model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firth.models.language_model import TrainableModel
from firth.training.distributed.divided_tensors import is_divided, like_divided
from firth.training.distributed.ranks import current_ranks
from firth.training.optim import STEPS, Optimizer, OptimizerConfig


class LocalOptimizer(Optimizer):
    """Update this rank's rows of divided parameters."""

    def __init__(self, network: TrainableModel, config: OptimizerConfig) -> None:
        self._divided = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._rows = {name: _own_rows(p) for name, p in self._divided.items()}
        super().__init__(_LocalNetwork(network, self._rows), config)  # type: ignore[arg-type]

    def scale_gradients(self, factor: float) -> None:
        """Multiply all gradients, to undo loss scaling."""
        self._take_gradients()
        super().scale_gradients(factor)

    def clip_gradients(self) -> Tensor:
        """Clip the gradients to the norm of all ranks' rows; return the norm before clipping."""
        self._take_gradients()
        gradients = [rows.grad for rows in self._rows.values() if rows.grad is not None]
        norm = nn.utils.get_total_norm(gradients).to(self._parameters[0].device)
        if current_ranks().size > 1:
            squared = norm.square()
            dist.all_reduce(squared)
            norm = squared.sqrt()
        if self.config.max_grad_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self.config.max_grad_norm, norm)
        return norm

    def _take_gradients(self) -> None:
        """Move the gradients from the divided parameters to this rank's rows."""
        for name, parameter in self._divided.items():
            if parameter.grad is not None:
                self._rows[name].grad = _local(parameter.grad)
                parameter.grad = None

    def zero_grad(self) -> None:
        """Remove all gradients."""
        super().zero_grad()
        for parameter in self._divided.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, divided as the parameters are."""
        found = super().tensors()
        return {
            name: tensor if name == STEPS else like_divided(tensor, self._parameter_of(name))
            for name, tensor in found.items()
        }

    def _parameter_of(self, name: str) -> Tensor:
        """Return the parameter of a state tensor, such as adamw.exp_avg.NAME."""
        return self._divided[name.split(".", 2)[2]]


class _LocalNetwork:
    """A network whose parameters are the rows of this rank."""

    def __init__(self, network: TrainableModel, rows: dict[str, nn.Parameter]) -> None:
        self._network, self._rows = network, rows

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the rows by the parameters' names."""
        return iter(self._rows.items())

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of the network."""
        return self._network.named_modules()


def _own_rows(parameter: Tensor) -> nn.Parameter:
    """Return this rank's rows, which share their memory with the divided parameter."""
    return nn.Parameter(_local(parameter))


@torch.no_grad()  # with gradients, `to_local` is a node of the autograd graph
def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if is_divided(tensor) else tensor).detach()
