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
    head = config.vocabulary * config.table_width * predicted
    if config.architecture != "encoder-decoder":
        seen = length / 2 if config.architecture == "decoder" else length
        return 6.0 * tokens * (config.layers * _block(config, seen) + head)
    # A token passes one side, and those of the encoder are looked at by those of the decoder.
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    cross = 2 * (config.width * queries + config.reading.width * keys)
    reads = config.layers * _block(config.reading, length)
    writes = config.decoder_layers * (_block(config, length) + cross)
    return 6.0 * tokens * ((reads + writes) / 2 + head)


def _block(config: ModelConfig, seen: float) -> float:
    """The weights that a token meets in one block, and the products of its attention."""
    queries, keys = config.heads * config.head_width, config.kv_heads * config.head_width
    width, ways = config.block_width, 3 if config.gated else 2
    block = width * (2 * queries + 2 * keys) + ways * width * config.inner * config.feed_forwards
    return block + 2 * queries * seen


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
