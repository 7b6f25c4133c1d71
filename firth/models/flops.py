"""How much a network computes, counted as products of matrices."""

from __future__ import annotations

import time

import torch

from firth.models.config import ModelConfig


def training_flops(config: ModelConfig, tokens: int, length: float, predicted: float) -> float:
    """Operations of a forward and a backward pass over so many tokens.

    Six for each weight a token meets (Kaplan et al. 2020, section 2.1), and attention beside them;
    the head only for the predicted share of the positions.

    >>> from firth.models.presets import preset
    >>> per_token = training_flops(preset("gpt2").config, 1, 1024, 1.0)
    >>> round(per_token / 1e9, 2)  # 6 x 124M weights, and 12 x layers x width x length / 2
    0.8
    """
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    width, ways = config.block_width, 3 if config.gated else 2
    block = width * (2 * queries + 2 * keys) + ways * width * config.inner * config.feed_forwards
    layers = float(config.layers)
    seen = length / 2 if config.architecture == "decoder" else length
    if config.architecture == "encoder-decoder":  # a token passes one side; both are counted once
        layers = (config.layers + config.decoder_layers) / 2
        block += width * (queries + keys)
    head = config.vocabulary * config.table_width * predicted
    return 6.0 * tokens * (layers * (block + 2 * queries * seen) + head)


def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large product of matrices, here and now."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best
