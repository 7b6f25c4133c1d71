"""What training on several ranks needs: bytes in the memory of a rank, bytes that it exchanges.

Computed from the sizes of the parameters, without activations. W ranks exchange in rings: an
all-reduce of n bytes sends 2 n (W - 1) / W from each rank, an all-gather or a reduce-scatter half
as much (Thakur et al. 2005, sections 4.1 to 4.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from firth.training.distributed.sharded_optimizer import MUON_COST, assign_owners
from firth.training.optim import muon_splits

FLOAT32, BFLOAT16 = 4, 2  # bytes
# Of sharded weights:
MIN_UNIT = 1 << 24  # parameters of blocks that are gathered together: each unit takes time to start
MAX_GATHERED = 1 << 28  # parameters of all blocks that stay gathered until the backward pass


@dataclass(frozen=True, kw_only=True)
class RankCost:
    """Bytes in the memory of the rank that needs most, and bytes that a rank sends in a step."""

    parallel: str  # replicate or shard
    weights: int
    gradients: int
    optimizer: int  # its state
    gathered: int  # temporary: buckets of gradients, or gathered weights and their gradients
    sent: int

    @property
    def memory(self) -> int:
        """The sum of all parts, without activations."""
        return self.weights + self.gradients + self.optimizer + self.gathered

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {**asdict(self), "memory": self.memory}


def replicated_cost(network: nn.Module, optimizer: str, ranks: int) -> RankCost:
    """Return the cost of replicated weights.

    >>> cost = replicated_cost(nn.Linear(9, 9), "adamw", ranks=2)  # 90 parameters
    >>> cost.weights, cost.optimizer, cost.sent  # the matrix is on one rank
    (360, 652, 540)
    """
    sizes, muon = _sizes(network), muon_splits(network) if optimizer == "muon" else {}
    total = FLOAT32 * sum(sizes.values())
    costs = {name: size * (MUON_COST if name in muon else 1) for name, size in sizes.items()}
    states = [0] * ranks
    for name, owner in assign_owners(costs, ranks).items():
        states[owner] += FLOAT32 * (sizes[name] if name in muon else 2 * sizes[name] + 1)
    reduced = 2 * total * (ranks - 1) // ranks
    updated = total * (ranks - 1) // ranks  # each rank receives what it does not own
    return RankCost(
        parallel="replicate",
        weights=total,
        gradients=total,
        optimizer=max(states),
        gathered=total if ranks > 1 else 0,  # flat copies of gradients, then of weights
        sent=reduced + updated,
    )


def sharded_cost(network: nn.Module, precision: str, ranks: int, micro_batches: int) -> RankCost:
    """Return the cost of sharded weights; for each micro-batch, blocks are gathered once or twice.

    >>> cost = sharded_cost(nn.Linear(9, 9), "bf16", ranks=2, micro_batches=1)
    >>> cost.weights, cost.optimizer, cost.sent
    (180, 368, 270)
    """
    sizes = _sizes(network)
    total, width = sum(sizes.values()), BFLOAT16 if precision == "bf16" else FLOAT32
    blocks = _block_sizes(sizes)
    outside = total - sum(blocks.values())  # embeddings and heads stay gathered
    unit = max(MIN_UNIT, max(blocks.values(), default=0))
    frees = sum(blocks.values()) > MAX_GATHERED
    kept = 2 * unit if frees else sum(blocks.values())  # the next unit is gathered ahead
    gathers = micro_batches * ((1 + frees) * sum(blocks.values()) + outside)
    gradients = outside + min(2 * unit, sum(blocks.values()))  # before they are summed
    return RankCost(
        parallel="shard",
        weights=FLOAT32 * -(-total // ranks),
        gradients=FLOAT32 * -(-total // ranks),
        optimizer=2 * FLOAT32 * -(-total // ranks) + FLOAT32 * len(sizes),
        gathered=width * (outside + kept + gradients),
        sent=(gathers * width + total * FLOAT32) * (ranks - 1) // ranks,
    )


def _sizes(network: nn.Module) -> dict[str, int]:
    return {name: p.numel() for name, p in network.named_parameters() if p.requires_grad}


def _block_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Add up the parameters of each block.

    >>> _block_sizes({"tokens.weight": 9, "encoder.blocks.0.up": 2, "encoder.blocks.0.down": 3})
    {'encoder.blocks.0': 5}
    """
    blocks: dict[str, int] = {}
    for name, size in sizes.items():
        before, found, after = name.partition(".blocks.")
        if found:
            key = f"{before}.blocks.{after.partition('.')[0]}"
            blocks[key] = blocks.get(key, 0) + size
    return blocks
