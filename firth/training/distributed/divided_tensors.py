"""Tensors whose rows are divided among the ranks, as FSDP2 divides parameters (DTensor).

`torch.distributed.tensor` takes a second to import, and only runs with such tensors need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn

from firth.training.distributed.ranks import current_ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_divided(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether the rows of a tensor are divided among the ranks.

    >>> is_divided(torch.ones(2))
    False
    """
    return hasattr(tensor, "full_tensor")


def first_row(rows: int, rank: int, ranks: int) -> int:
    """Return the first of the rows that a rank has; torch divides them as `Tensor.chunk` does.

    >>> [first_row(5, rank, ranks=3) for rank in range(3)], first_row(2, rank=2, ranks=3)
    ([0, 2, 4], 2)
    """
    return min(rank * -(-rows // ranks), rows)


def own_pieces(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield this rank's rows of divided tensors as `name@row`; the main rank has all others."""
    ranks = current_ranks()
    for name, tensor in tensors.items():
        if is_divided(tensor):
            local = tensor.to_local()
            if len(local):
                yield f"{name}@{first_row(len(tensor), ranks.rank, ranks.size)}", local
        elif ranks.is_main:
            yield name, tensor


def like_divided(local: Tensor, other: Tensor) -> Tensor:
    """Return this rank's rows as part of a tensor that is divided as another one is."""
    if not is_divided(other):
        return local
    from torch.distributed.tensor import DTensor

    layout = other.device_mesh, other.placements
    return DTensor.from_local(
        local, *layout, run_check=False, shape=other.shape, stride=other.stride()
    )


@torch.no_grad()
def copy_tensor(destination: Tensor, source: Tensor) -> None:
    """Copy a whole tensor; into a divided one, this rank's rows of it."""
    if not is_divided(destination):
        destination.copy_(source)
        return
    ranks, local = current_ranks(), destination.to_local()
    begin = first_row(len(destination), ranks.rank, ranks.size)
    local.copy_(source[begin : begin + len(local)])


def whole_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the state of a divided network in main memory, on the main rank; every rank calls it.

    Other ranks get an empty dict.
    """
    is_main, whole = current_ranks().is_main, {}
    for name, tensor in network.state_dict().items():
        joined = tensor.full_tensor() if is_divided(tensor) else tensor
        if is_main:
            whole[name] = joined.detach().cpu()
    return whole
