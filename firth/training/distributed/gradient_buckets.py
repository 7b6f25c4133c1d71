"""The sum of all ranks' gradients, computed while the backward pass is still running.

Gradients are summed in buckets of about 25 MB (Li et al. 2020, "PyTorch Distributed", section
3.2.3): as soon as the last gradient of a bucket is complete, its all-reduce starts, and meanwhile
the backward pass continues in the layers below. The losses are divided by the counts of the whole
batch before, so the sum is the gradient of the whole batch.

Which parameters have a gradient depends on the predictions of a batch and on what is frozen; the
ranks find out together when a kind of batch comes first, and sum in the same order from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from firth.training.distributed.ranks import current_ranks, gather_json
from firth.training.pending_metrics import StepSums
from firth.utils.errors import FirthError

BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class ReductionPlan:
    """What all ranks sum for one kind of batch, and in which order."""

    buckets: list[list[int]]  # indices of parameters
    bucket_of: dict[int, int]  # parameter -> its bucket
    sums: list[str]  # names of losses and numbers of correct predictions
    weights: dict[str, float]  # of the losses


class GradientBuckets:
    """Sum gradients over all ranks; `parameters` are the trainable ones, in the same order."""

    def __init__(self, parameters: Sequence[nn.Parameter], device: torch.device) -> None:
        self.parameters, self.device = list(parameters), device
        self.overlaps = False  # the backward pass of the last micro-batch of a step is running
        self.bytes_reduced = 0  # in the last step
        self._plans: dict[Hashable, ReductionPlan] = {}
        self._index = {id(p): i for i, p in enumerate(self.parameters)}
        self._handles = [p.register_post_accumulate_grad_hook(self._ready) for p in self.parameters]
        self._step = -1
        self._begin(())

    def begin(self, step: int, kind: Hashable) -> None:
        """Begin a step on a kind of batch; again after running out of memory in it."""
        self.overlaps = False
        key = kind, tuple(p.requires_grad for p in self.parameters)
        if step == self._step and key == self._key:
            self._reset_counts()  # the buckets that are summed already stay so
            return
        self._step = step
        self._begin(key)

    def _begin(self, key: Hashable) -> None:
        self._key = key
        self._plan = self._plans.get(key)
        self._launched: list[tuple[Tensor, Any]] = []  # of the first buckets: sums and handles
        self._reset_counts()

    def _reset_counts(self) -> None:
        buckets = [] if self._plan is None else self._plan.buckets
        self._missing = [len(bucket) for bucket in buckets]

    def _ready(self, parameter: Tensor) -> None:
        """Note a complete gradient; start summing the buckets that are complete, in order."""
        if not self.overlaps or self._plan is None:
            return
        bucket = self._plan.bucket_of.get(self._index[id(parameter)])
        if bucket is None:
            return
        self._missing[bucket] -= 1
        while len(self._launched) < len(self._missing) and not self._missing[len(self._launched)]:
            self._launch()

    def _launch(self) -> None:
        """Start to sum the next bucket."""
        assert self._plan is not None
        members = [self.parameters[i] for i in self._plan.buckets[len(self._launched)]]
        flat = torch.cat([_gradient(p).flatten() for p in members])
        self._launched.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self, sums: StepSums) -> StepSums:
        """Sum the gradients and losses that are left; return the losses' sums over all ranks."""
        if self._plan is None:
            self._plan = self._plans[self._key] = self._agree(sums)
        plan = self._plan
        while len(self._launched) < len(plan.buckets):
            self._launch()
        total = self._sum_losses(sums, plan)
        for (flat, work), bucket in zip(self._launched, plan.buckets, strict=True):
            work.wait()
            members = [self.parameters[i] for i in bucket]
            parts = flat.split([p.numel() for p in members])
            for parameter, part in zip(members, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        self.bytes_reduced = sum(flat.nbytes for flat, _ in self._launched)
        self._check_left(plan)
        self._launched, self._step = [], -1
        return total

    def _agree(self, sums: StepSums) -> ReductionPlan:
        """Find out which gradients and losses the ranks have."""
        own = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        mine = {"gradients": own, "sums": list(sums.values), "weights": sums.weights}
        everyone = gather_json(mine)
        found = sorted({i for one in everyone for i in one["gradients"]}, reverse=True)
        buckets = _buckets(found, self.parameters)
        names = dict.fromkeys(name for one in everyone for name in one["sums"])
        weights = {name: weight for one in everyone for name, weight in one["weights"].items()}
        ordered = {name: weights[name] for name in sums.counts if name in weights}
        return ReductionPlan(
            buckets,
            {i: number for number, bucket in enumerate(buckets) for i in bucket},
            sorted(names, key=lambda name: _place(name, list(sums.counts))),
            ordered,
        )

    def _sum_losses(self, sums: StepSums, plan: ReductionPlan) -> StepSums:
        if not plan.sums:
            return sums
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        own = torch.stack([sums.values.get(name, zero).detach().double() for name in plan.sums])
        if current_ranks().size > 1:
            dist.all_reduce(own)
        return StepSums(dict(zip(plan.sums, own, strict=True)), sums.counts, plan.weights)

    def _check_left(self, plan: ReductionPlan) -> None:
        """Raise an error about a gradient that the other ranks did not expect."""
        known = plan.bucket_of
        if any(p.grad is not None and i not in known for i, p in enumerate(self.parameters)):
            raise FirthError("A parameter has a gradient that batches of this kind had not before.")

    def remove(self) -> None:
        """Remove the hooks from the parameters."""
        for handle in self._handles:
            handle.remove()


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient; zeros where this rank's part of the batch does not use the parameter."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _place(name: str, counts: list[str]) -> tuple[bool, int]:
    """Order losses as their counts, then accuracies."""
    return (name not in counts, counts.index(name) if name in counts else 0)


def _buckets(indices: Sequence[int], parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    """Group parameters, in this order, into buckets of one dtype and limited size."""
    buckets: list[list[int]] = []
    size, dtype = BUCKET_BYTES, None
    for i in indices:
        parameter = parameters[i]
        if size >= BUCKET_BYTES or parameter.dtype != dtype:
            buckets.append([])
            size, dtype = 0, parameter.dtype
        buckets[-1].append(i)
        size += parameter.nbytes
    return buckets
