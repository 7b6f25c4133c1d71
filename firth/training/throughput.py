"""Throughput of a pre-training run: model FLOPs utilisation and peak memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from firth.models.flops import measure_peak_flops
from firth.models.transformer_config import TransformerConfig
from firth.training.log import Metrics
from firth.training.pretrain_config import PretrainRunConfig
from firth.training.runtime import peak_memory


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
    per_token = config.flops_per_token()

    def metrics(tokens: int, seconds: float) -> Metrics:
        mfu = per_token * tokens / max(seconds, 1e-9) / peak
        return {"mfu": mfu, "memory": peak_memory(device)}

    return metrics
