"""How the training loop uses several ranks: what each computes, exchanges and saves.

The batch of a step does not depend on the number of ranks; each computes a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn

from firth.models.language_model import TrainableModel
from firth.objectives.batch import Batch
from firth.training.checkpoint import Checkpoints
from firth.training.config import TrainingConfig
from firth.training.distributed.gradient_buckets import GradientBuckets
from firth.training.distributed.ranks import Ranks, current_ranks
from firth.training.distributed.sharded_checkpoints import ShardedCheckpoints
from firth.training.distributed.sharded_optimizer import ShardedOptimizer
from firth.training.optim import Optimizer
from firth.training.pending_metrics import StepSums

DROPOUT_SLICES = 8  # parts of a batch with dropout masks of their own, under torchrun


class MicroBatch(NamedTuple):
    """A part of a batch that is computed at once."""

    key: int  # of its dropout masks
    batch: Batch
    counts: bool = True  # False: its losses are not part of the step


class Parallelism:
    """Training on one device: the whole batch, and no exchange. Others are subclasses."""

    ranks = Ranks()
    loss_factor = 1  # of the loss before the backward pass
    repeats_alone = True  # a rank can repeat its part of a step

    def __init__(self, module: TrainableModel, config: TrainingConfig) -> None:
        self.optimizer = Optimizer(module, config.optimizer)

    def checkpoints(self, folder: Path, keep: int) -> Checkpoints:
        """Return the checkpoints of the run."""
        return Checkpoints(folder, keep)

    def own_tensors(
        self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what this rank writes of a checkpoint."""
        return {**weights, **optimizer}

    def same_number(self, parts: list[MicroBatch], batch: Batch) -> list[MicroBatch]:
        """Return the micro-batches of this rank; if needed, as many as all others have."""
        return parts

    def validating(self) -> AbstractContextManager[None]:
        """Return a context in which the network can be used outside of training."""
        return nullcontext()

    def begin(self, step: int, counts: Mapping[str, int]) -> None:
        """Begin the gradients of a step whose batch has these numbers of targets."""

    def begin_backward(self, is_last: bool) -> None:
        """Begin a backward pass, which may be this rank's last one in a step."""

    def finish(self, sums: StepSums) -> StepSums:
        """Complete the gradients of a step; return the sums of the losses over the whole batch."""
        return sums

    def end(self) -> None:
        """Remove what was added to the network."""


class Replicated(Parallelism):
    """All weights on every rank, gradients summed over ranks, a part of the optimizer on each."""

    def __init__(self, module: TrainableModel, config: TrainingConfig) -> None:
        self.ranks = current_ranks()
        self.optimizer = ShardedOptimizer(module, config.optimizer, self.ranks)
        trainable = [p for _, p in module.named_parameters() if p.requires_grad]
        self.buckets = GradientBuckets(trainable, module.device)

    def checkpoints(self, folder: Path, keep: int) -> Checkpoints:
        return ShardedCheckpoints(folder, keep)

    def own_tensors(
        self, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {**(weights if self.ranks.is_main else {}), **optimizer}

    def begin(self, step: int, counts: Mapping[str, int]) -> None:
        self.buckets.begin(step, tuple(name for name, count in counts.items() if count))

    def begin_backward(self, is_last: bool) -> None:
        self.buckets.overlaps = is_last

    def finish(self, sums: StepSums) -> StepSums:
        return self.buckets.finish(sums)

    def end(self) -> None:
        self.buckets.remove()


def rank_slices(batch: Batch, slices: int, ranks: Ranks) -> list[tuple[int, Batch]]:
    """Return the slices of a batch that a rank computes, each with its number.

    >>> import numpy as np
    >>> from firth.data.packing import PackedSequences
    >>> stream = PackedSequences(np.arange(4), np.array([0, 2, 3, 4]), np.zeros(3, np.uint64))
    >>> found = rank_slices(Batch(stream, stream.lengths), slices=2, ranks=Ranks(1, 2))
    >>> [(number, part.inputs.tokens.tolist()) for number, part in found]
    [(1, [2, 3])]
    """
    first, last = (slices * rank // ranks.size for rank in (ranks.rank, ranks.rank + 1))
    parts = enumerate(batch.divide(slices))
    return [(i, part) for i, part in parts if first <= i < last and part is not None]


def num_dropout_slices(network: nn.Module, config: TrainingConfig) -> int:
    """Return the number of slices with dropout masks of their own; 0: one for each rank.

    torch draws the masks of a micro-batch from one seed. A number of slices that is the same for
    1, 2, 4 and 8 ranks makes the masks the same, with every attention kernel and every layer.
    """
    if config.dropout_slices:
        return config.dropout_slices
    if not dist.is_initialized() or not has_dropout(network):
        return 0
    size = current_ranks().size
    return size * max(1, -(-DROPOUT_SLICES // size))


def has_dropout(network: nn.Module) -> bool:
    """Return whether some part of a network uses dropout in training.

    >>> has_dropout(nn.Sequential(nn.Dropout(0.1))), has_dropout(nn.Sequential(nn.Dropout(0.0)))
    (True, False)
    """
    return any(
        rate > 0
        for module in network.modules()
        for rate in (
            module.p if isinstance(module, nn.Dropout) else 0.0,
            getattr(getattr(module, "options", None), "dropout", 0.0),  # of LoRA
            *(value for name, value in vars(module).items() if name.endswith("dropout")),
        )
        if isinstance(rate, float)
    )
