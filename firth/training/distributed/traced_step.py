"""One training step without memory and without other ranks: what a rank needs and exchanges.

The step of the run itself, on torch's fake tensors, which have shapes but no memory, in a fake
process group, whose operations exchange nothing. Memory is that of the tensors which are alive,
without what torch's allocator adds. A GPU need not be there: `assumed_device` makes the network
choose what it would choose on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import layer_norm, rms_norm

from firth.models.transformer import count_parameters
from firth.objectives.batch import Batch
from firth.training.accumulation import GradientAccumulator
from firth.training.config import TrainingConfig
from firth.training.distributed.choice import make_parallel
from firth.training.distributed.collectives import CollectiveCounter, ring_bytes
from firth.training.distributed.divided_tensors import is_divided
from firth.training.distributed.live_memory import LiveMemory
from firth.training.distributed.parallelism import MicroBatch, num_dropout_slices
from firth.training.distributed.ranks import FAKE_BACKEND, current_ranks
from firth.training.losses import TrainingModule
from firth.training.runtime import apply_runtime_options
from firth.training.state import TrainingState
from firth.utils.devices import DeviceSpec, assumed_device
from firth.utils.errors import FirthError, UsageError

TRACED_MICRO_BATCHES = 2  # the others of a step do the same


@dataclass(frozen=True, kw_only=True)
class RankCost:
    """Bytes in the memory of rank 0 when it needs most, and what it sends in a step."""

    parallel: str  # replicate or shard
    parameters: int  # of the networks that are trained, on all ranks
    weights: int
    gradients: int  # at the peak
    optimizer: int  # its state
    activations: int  # at the peak; with all other tensors, such as gathered weights
    micro_batches: int  # of a step
    collectives: dict[str, int]  # calls of each operation in a step
    payload: dict[str, int]  # bytes of the exchanged tensors, by operation
    sent: int

    @property
    def memory(self) -> int:
        """The bytes of all tensors at the peak."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {**asdict(self), "memory": self.memory}


@dataclass(frozen=True, kw_only=True)
class TracedRun:
    """What a traced step needs of a run; `build` makes the networks, without their weights."""

    build: Callable[[], TrainingModule]
    config: TrainingConfig
    batch: Batch  # of one step, on all ranks
    device: DeviceSpec


def trace_step(run: TracedRun, ranks: int, *, shards: bool) -> RankCost:
    """Run a training step of rank 0 on fake tensors; return what it needs and sends."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with assumed_device(run.device), _fake_group(ranks, shards), LiveMemory() as memory:
        with fake:
            module = run.build()
            module.train()
        if run.device.type == "cuda":
            _compute_norms_in_float32(module)
        step = _Step(module, run.config, memory, shards)  # a device mesh needs real tensors
        with fake:
            if ranks > 1 and not shards:
                step.find_gradients(run.batch)
            step.run(run.batch)
        return step.cost()


class _Step:
    """A training step whose memory and exchanges are counted."""

    def __init__(
        self, module: TrainingModule, config: TrainingConfig, memory: LiveMemory, shards: bool
    ) -> None:
        config = replace(config, compile="false", cuda_graphs="false")
        apply_runtime_options(module.network, config)
        self.module, self.memory, self.shards = module, memory, shards
        parallel = make_parallel(module, config, shards)
        self.optimizer = parallel.optimizer
        self.accumulator = _FewMicroBatches(module, config, parallel, self._before_micro_batch)
        self.state = TrainingState(
            micro_batch_tokens=config.micro_batch_tokens,
            dropout_slices=num_dropout_slices(module.network, config),
        )
        trained = {*module.parameters(), *self.optimizer.parameters}
        self.gradient_sizes = {p: own_bytes(p) for p in trained}
        self.gradients = 0  # bytes, when there are most bytes in total
        self.counter = CollectiveCounter()
        self.before: list[tuple[Counter[str], Counter[str]]] = []  # calls, bytes: by micro-batch

    def find_gradients(self, batch: Batch) -> None:
        """Let the ranks agree on what they sum, as in the first step of a run."""
        self.accumulator.accumulate(batch, self.state)
        self.optimizer.zero_grad()
        self.state.step += 1
        self.before.clear()

    def run(self, batch: Batch) -> None:
        """Take the step: gradients, clipping, update."""
        self.memory.peak, self.memory.on_peak = 0, self._note_gradients
        with self.counter:
            self.accumulator.accumulate(batch, self.state)
            self.optimizer.clip_gradients()
            self.optimizer.step(multiplier=1.0)
            self.optimizer.zero_grad()

    def _note_gradients(self) -> None:
        sizes = self.gradient_sizes.items()
        self.gradients = sum(size for p, size in sizes if p.grad is not None)

    def _before_micro_batch(self, step: int, batch: Batch) -> None:
        self.before.append((self.counter.calls.copy(), self.counter.payload.copy()))

    def cost(self) -> RankCost:
        """Return what the step needed, and exchanged in all of its micro-batches."""
        if self.counter.unknown:
            names = ", ".join(sorted(self.counter.unknown))
            raise FirthError(f"The bytes of an exchange of this run cannot be predicted: {names}.")
        weights = sum(map(own_bytes, _weights(self.module)))
        optimizer = sum(map(own_bytes, self.optimizer.tensors().values()))
        calls, payload = self.counter.calls, self.counter.payload
        if more := self.accumulator.not_traced:
            for total, first, second in zip((calls, payload), *self.before, strict=True):
                total.update({name: more * (second[name] - first[name]) for name in second})
        return RankCost(
            parallel="shard" if self.shards else "replicate",
            parameters=count_parameters(self.module),
            weights=weights,
            gradients=self.gradients,
            optimizer=optimizer,
            activations=self.memory.peak - weights - optimizer - self.gradients,
            micro_batches=len(self.before) + more,
            collectives=dict(calls),
            payload=dict(payload),
            sent=ring_bytes(payload, current_ranks().size),
        )


class _FewMicroBatches(GradientAccumulator):
    """Compute the largest two micro-batches of a step; the others do the same."""

    not_traced = 0

    def micro_batches(self, batch: Batch, state: TrainingState) -> Iterator[MicroBatch]:
        parts = list(super().micro_batches(batch, state))
        if not parts:
            raise UsageError(
                f"A batch of {batch.tokens:,} tokens has {len(batch.inputs.lengths):,} sequences, "
                f"too few for {current_ranks().size:,} ranks: increase --set batch_tokens=N."
            )
        self.not_traced = max(0, len(parts) - TRACED_MICRO_BATCHES)
        yield from sorted(parts, key=lambda part: -part.batch.tokens)[:TRACED_MICRO_BATCHES]


def own_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor; of a divided one, those of this rank's rows.

    >>> own_bytes(torch.ones(3))
    12
    """
    return tensor.to_local().nbytes if is_divided(tensor) else tensor.nbytes


def _weights(module: TrainingModule) -> Iterator[Tensor]:
    for network in (module, *module.teacher):
        yield from network.parameters()
        yield from network.buffers()


def _compute_norms_in_float32(module: nn.Module) -> None:
    """Let norms convert their input under autocast, as it does by itself on a GPU."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm):
            part.forward = partial(_float32_norm, part)  # type: ignore[method-assign]


def _float32_norm(norm: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> Tensor:
    if not torch.is_autocast_enabled("cpu"):
        return type(norm).forward(norm, x)  # type: ignore[arg-type]
    shape, eps = list(norm.normalized_shape), norm.eps
    weight = None if norm.weight is None else norm.weight.float()
    if isinstance(norm, nn.RMSNorm):
        return rms_norm(x.float(), shape, weight, eps)
    bias = None if norm.bias is None else norm.bias.float()
    return layer_norm(x.float(), shape, weight, bias, norm.eps)


@contextmanager
def _fake_group(ranks: int, shards: bool) -> Iterator[None]:
    """Join a process group whose other ranks do not exist; one rank alone needs none."""
    if dist.is_initialized():
        raise UsageError("--dry-run needs a process without a torch.distributed process group.")
    if ranks == 1 and not shards:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # slow to import

    dist.init_process_group(FAKE_BACKEND, store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
