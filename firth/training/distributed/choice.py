"""The choice between replicated and sharded weights (`--parallel`)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from firth.models.language_model import TrainableModel
from firth.training.config import TrainingConfig
from firth.training.distributed.parallelism import Parallelism, Replicated
from firth.training.distributed.ranks import current_ranks
from firth.utils.errors import UsageError

STATE_BYTES = 16  # of a float32 parameter: weight, gradient and AdamW's two moments
MAX_FRACTION = 0.7  # of a GPU's memory for them; the rest is for activations


def shards_weights(network: nn.Module, config: TrainingConfig, device: torch.device) -> bool:
    """Return whether a run divides its weights among the ranks.

    >>> shards_weights(nn.Linear(2, 2), TrainingConfig(), torch.device("cpu"))
    False
    """
    if config.parallel == "shard" and not dist.is_initialized():
        raise UsageError("--parallel shard needs torchrun, also for one process.")
    if config.parallel != "auto":
        return config.parallel == "shard"
    if current_ranks().size == 1 or device.type != "cuda":
        return False
    needed = STATE_BYTES * sum(p.numel() for p in network.parameters() if p.requires_grad)
    return needed > MAX_FRACTION * torch.cuda.get_device_properties(device).total_memory


def resolve_parallel(config: TrainingConfig, shards: bool) -> TrainingConfig:
    """Return the config; with sharded weights, `parallel` is shard and CUDA graphs are off."""
    return replace(config, parallel="shard", cuda_graphs="false") if shards else config


def make_parallel(module: TrainableModel, config: TrainingConfig, shards: bool) -> Parallelism:
    """Prepare a network for training on all ranks."""
    if shards:
        from firth.training.distributed.fully_sharded import FullySharded  # slow to import

        return FullySharded(module, config)
    return (Replicated if current_ranks().size > 1 else Parallelism)(module, config)
