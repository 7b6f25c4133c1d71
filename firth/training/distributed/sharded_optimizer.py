"""An optimizer whose state is divided among the ranks by parameter (Rajbhandari et al. 2020, ZeRO).

Every rank has all gradients; each updates the parameters that it owns and sends them to the others.
A parameter is never divided, so that Muon orthogonalises whole matrices, as on one device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firth.models.language_model import TrainableModel
from firth.training.distributed.ranks import Ranks
from firth.training.optim import Optimizer, OptimizerConfig, muon_splits
from firth.utils.foreach import foreach

MUON_COST = 8  # of updating a number with Muon's five iterations, relative to AdamW


class ShardedOptimizer(Optimizer):
    """Update the parameters that this rank owns, and receive the others."""

    def __init__(
        self, network: TrainableModel | nn.Module, config: OptimizerConfig, ranks: Ranks
    ) -> None:
        named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        muon = muon_splits(network) if config.optimizer == "muon" else {}
        costs = {name: p.numel() * (MUON_COST if name in muon else 1) for name, p in named.items()}
        self.owners = assign_owners(costs, ranks.size)
        self._named, self._ranks = named, ranks
        own = {name for name, owner in self.owners.items() if owner == ranks.rank}
        super().__init__(network, config, own)
        self._send(dict.fromkeys(named, 0))  # all begin with the main rank's weights

    def step(self, multiplier: float, finite: Tensor | None = None) -> None:
        """Update this rank's parameters, then exchange them."""
        super().step(multiplier, finite)
        self._send(self.owners)

    @torch.no_grad()
    def _send(self, owners: Mapping[str, int]) -> None:
        """Copy each parameter from its owner to all other ranks."""
        pending = []
        for owner in range(self._ranks.size):
            owned = [self._named[name] for name, rank in owners.items() if rank == owner]
            for members in _by_dtype(owned):
                flat = torch.cat([p.detach().flatten() for p in members])
                pending.append((owner, members, flat, dist.broadcast(flat, owner, async_op=True)))
        for owner, members, flat, work in pending:
            work.wait()
            if owner != self._ranks.rank:
                parts = flat.split([p.numel() for p in members])
                new = [part.view_as(p) for part, p in zip(parts, members, strict=True)]
                foreach("copy_", [p.detach() for p in members], new)


def _by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


def assign_owners(costs: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Assign each parameter to a rank: the most expensive first, to the rank with the least so far.

    >>> assign_owners({"tokens": 6, "up": 4, "down": 4, "norm": 1}, ranks=2)
    {'tokens': 0, 'up': 1, 'down': 1, 'norm': 0}
    """
    loads = [0] * ranks
    owners = {}
    for name in sorted(costs, key=lambda name: -costs[name]):  # stable: in the network's order
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += costs[name]
    return {name: owners[name] for name in costs}
