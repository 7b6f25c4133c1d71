"""The gradient of a step, accumulated over micro-batches and summed over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from firth.models.language_model import LossTerm, TrainableModel
from firth.objectives.batch import Batch
from firth.training.config import TrainingConfig
from firth.training.distributed.parallelism import MicroBatch, Parallelism, rank_slices
from firth.training.log import ACCURACY
from firth.training.pending_metrics import StepSums
from firth.training.runtime import autocast
from firth.training.state import TrainingState
from firth.utils.rng import derive_key


class GradientAccumulator:
    """Compute gradients of a batch; each loss is divided by its count in the whole batch."""

    def __init__(
        self,
        module: TrainableModel,
        config: TrainingConfig,
        parallel: Parallelism,
        before_micro_batch: Callable[[int, Batch], None],
    ) -> None:
        self.module, self.config, self.parallel = module, config, parallel
        self.before_micro_batch = before_micro_batch

    def accumulate(self, batch: Batch, state: TrainingState) -> StepSums:
        """Accumulate the gradient of a step; return the sums of the losses."""
        counts = self.module.counts(batch)
        self.parallel.begin(state.step, counts)
        sums: dict[str, Tensor] = {}
        correct: dict[str, Tensor] = {}
        weights: dict[str, float] = {}
        parts = self.parallel.same_number(list(self.micro_batches(batch, state)), batch)
        for i, (key, part, is_counted) in enumerate(parts):
            self.before_micro_batch(state.step, part)
            torch.manual_seed(key & (2**63 - 1))  # dropout
            with autocast(self.config, self.module.device):
                terms: dict[str, LossTerm] = self.module(part)
            self.parallel.begin_backward(is_last=i == len(parts) - 1)
            if not terms:  # too short to have a target
                continue
            loss = sum(
                (term.weight / counts[name] * term.sum for name, term in terms.items()),
                start=torch.zeros((), device=self.module.device),
            )
            loss = loss * self.parallel.loss_factor if self.parallel.loss_factor > 1 else loss
            if not is_counted:
                (0.0 * loss).backward()
                continue
            if loss.requires_grad:  # not for replayed text while only a task head is trained
                scaled = self.config.precision == "fp16"
                (loss * state.loss_scale if scaled else loss).backward()
            for name, term in terms.items():
                sums[name] = sums.get(name, 0) + term.sum.detach()
                if term.num_correct is not None:
                    correct[name] = correct.get(name, 0) + term.num_correct
                weights[name] = term.weight
            del terms, term, loss  # CUDA graphs are not captured while an autograd graph is alive
        accuracies = {f"{name}{ACCURACY}": count for name, count in correct.items()}
        return self.parallel.finish(StepSums(sums | accuracies, counts, weights))

    def micro_batches(self, batch: Batch, state: TrainingState) -> Iterator[MicroBatch]:
        """Yield this rank's micro-batches, each with the key of its dropout masks."""
        seed = derive_key(self.config.seed, state.step)
        ranks = self.parallel.ranks
        slices = state.dropout_slices or ranks.size
        for number, part in rank_slices(batch, slices, ranks):
            own = derive_key(seed, number) if slices > 1 else seed
            for i, micro in enumerate(part.split(state.micro_batch_tokens or part.tokens)):
                yield MicroBatch(derive_key(own, i), micro)
