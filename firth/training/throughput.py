"""Throughput of a pre-training run: model FLOPs utilisation and peak memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from firth.models.flops import measure_peak_flops, training_flops
from firth.models.generator import generator_config
from firth.models.transformer_config import TransformerConfig, require_transformer_config
from firth.objectives.registry import OBJECTIVES
from firth.training.data_loader import options_at
from firth.training.log import Metrics
from firth.training.pretrain_config import PretrainRunConfig
from firth.training.runtime import peak_memory
from firth.training.schedule import StagedValue


def throughput_metrics(
    config: PretrainRunConfig, device: torch.device
) -> Callable[[int, float], Metrics]:
    """Return a function that computes MFU and peak memory from a number of tokens and seconds.

    The FLOPs, and so the MFU, of networks other than Transformers are not counted.
    """
    if not isinstance(config.model, TransformerConfig):
        return lambda tokens, seconds: {"memory": peak_memory(device)}
    dtype = torch.bfloat16 if config.training.precision == "bf16" else torch.float32
    peak = measure_peak_flops(device, dtype)
    length = StagedValue.parse(config.training.max_length).sizes[0]
    per_token = flops_per_token(config, length)

    def metrics(tokens: int, seconds: float) -> Metrics:
        mfu = per_token * tokens / max(seconds, 1e-9) / peak
        return {"mfu": mfu, "memory": peak_memory(device)}

    return metrics


def flops_per_token(config: PretrainRunConfig, length: int) -> float:
    """Return the training FLOPs per token at the start of a run."""
    row, model = OBJECTIVES[config.objective], require_transformer_config(config.model)
    fraction = row.predicted_fraction(**options_at(config, 0.0))
    if "replaced" not in row.predicts:
        return training_flops(model, 1, length, fraction)
    generator = training_flops(generator_config(model), 1, length, fraction)
    return generator + training_flops(model, 1, length, 0.0)  # no vocabulary head
