"""Weights, gradients and optimizer state divided among the ranks: FSDP2 (Zhao et al. 2023).

A block is a unit, or several if they are small: its weights are gathered from all ranks when it
runs, in bf16 if the run computes in it, and freed again; its gradients are summed in float32, and
each rank keeps its rows. Units that are small all together stay gathered until the backward pass.
All ranks must run the same number of micro-batches, as each gathers weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from firth.models.blocks import SharedBlock
from firth.models.language_model import TrainableModel
from firth.models.stack import Stack
from firth.objectives.batch import Batch
from firth.training.checkpoint import Checkpoints
from firth.training.config import TrainingConfig
from firth.training.distributed.divided_tensors import own_pieces
from firth.training.distributed.gradient_buckets import GradientBuckets
from firth.training.distributed.local_optimizer import LocalOptimizer
from firth.training.distributed.parallelism import MicroBatch, Parallelism
from firth.training.distributed.ranks import current_ranks, maximum
from firth.training.distributed.sharded_checkpoints import ShardedCheckpoints
from firth.training.pending_metrics import StepSums
from firth.utils.devices import device_spec
from firth.utils.errors import UsageError

MIN_UNIT = 1 << 24  # parameters of blocks that are gathered together: each unit takes time to start
MAX_GATHERED = 1 << 28  # parameters of all blocks that stay gathered until the backward pass


class FullySharded(Parallelism):
    """A part of every weight on each rank."""

    repeats_alone = False  # all ranks gather weights together

    def __init__(self, module: TrainableModel, config: TrainingConfig) -> None:
        if config.optimizer.optimizer == "muon":
            raise UsageError(
                "Muon needs whole matrices, which --parallel shard divides: choose --parallel "
                "replicate, or --set optimizer=adamw."
            )
        self.ranks = current_ranks()
        self.loss_factor = self.ranks.size  # FSDP averages the gradients
        self.root = shard_weights(cast(nn.Module, module), config.precision)
        self.optimizer = LocalOptimizer(module, config.optimizer)
        self.losses = GradientBuckets([], module.device)  # FSDP sums the gradients itself
        self._sums_gradients = True  # of all ranks, in the next backward pass

    def checkpoints(self, folder: Path, keep: int) -> Checkpoints:
        return ShardedCheckpoints(folder, keep)

    def own_tensors(
        self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return dict(own_pieces({**weights, **optimizer}))

    def same_number(self, parts: list[MicroBatch], batch: Batch) -> list[MicroBatch]:
        parts = [part for part in parts if any(part.batch.counts().values())]
        missing = int(maximum([len(parts)])[0]) - len(parts)
        if not missing:
            return parts
        # A sequence with all kinds of targets, whose loss does not count.
        unused = max(batch.split(1), key=lambda part: sum(map(bool, part.counts().values())))
        return [*parts, *[MicroBatch(0, unused, counts=False)] * missing]

    def begin(self, step: int, counts: Mapping[str, int]) -> None:
        self.losses.begin(step, tuple(name for name, count in counts.items() if count))

    def begin_backward(self, is_last: bool) -> None:
        if is_last != self._sums_gradients:  # FSDP visits all modules to change it
            self.root.set_requires_gradient_sync(is_last)
            self._sums_gradients = is_last

    def finish(self, sums: StepSums) -> StepSums:
        return self.losses.finish(sums)

    @contextmanager
    def validating(self) -> Iterator[None]:
        self.root.unshard()  # embeddings and heads, which are used outside of `forward`
        try:
            yield
        finally:
            for unit in cast(nn.Module, self.root).modules():  # no backward pass does it
                if isinstance(unit, FSDPModule):
                    unit.reshard()


def shard_weights(module: nn.Module, precision: str) -> FSDPModule:
    """Divide the weights of a network among all ranks, each block on its own, and move them."""
    from firth.training.distributed.process_group import rank_device

    device = rank_device("cuda" if "nccl" in dist.get_backend_config() else "cpu")  # of the run
    mesh = init_device_mesh(device.type, (current_ranks().size,))
    policy = MixedPrecisionPolicy()
    if precision == "bf16" and device_spec(device).type == "cuda":
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    units = group_units(_blocks(module))
    total = sum(_size(block) for unit in units for block in unit)
    frees = total > MAX_GATHERED
    for unit in units:
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=frees)
    return fully_shard(module, mesh=mesh, mp_policy=policy)


def group_units(blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Group consecutive blocks into units of at least `MIN_UNIT` parameters.

    >>> [len(unit) for unit in group_units([nn.Linear(4000, 4000) for _ in range(5)])]
    [2, 2, 1]
    """
    units: list[list[nn.Module]] = [[]]
    for block in blocks:
        if sum(map(_size, units[-1])) >= MIN_UNIT:
            units.append([])
        units[-1].append(block)
    return [unit for unit in units if unit]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Return the blocks that are units; none if a decoder uses the layers of an encoder's."""
    stacks = [part for part in module.modules() if isinstance(part, Stack)]
    blocks = [block for stack in stacks for block in stack.blocks]
    return [] if any(isinstance(block, SharedBlock) for block in blocks) else blocks
