"""Training FLOPs of a model, and the peak FLOP/s of a device."""

from __future__ import annotations

import time

import torch

from firth.models.transformer_config import TransformerConfig


def training_flops(
    config: TransformerConfig,
    tokens: int,
    length: float,
    predicted: float,
    *,
    frozen: bool = False,
) -> float:
    """Count the FLOPs of a forward and backward pass over `tokens` in sequences of `length`.

    Six per token and weight (Kaplan et al. 2020, section 2.1), plus attention; the output matrix
    counts for the `predicted` fraction of the positions. Four per `frozen` weight, which has no
    gradient but passes one on, as with LoRA.

    >>> from firth.models.presets import preset
    >>> per_token = training_flops(preset("gpt2").config, 1, 1024, 1.0)
    >>> round(per_token / 1e9, 2)  # 6 x 124M weights, and 12 x layers x hidden size x length / 2
    0.8
    """
    per_weight = 4.0 if frozen else 6.0
    head = per_weight * config.vocab_size * config.token_embedding_size * predicted
    if config.architecture != "encoder-decoder":
        attended = length / 2 if config.architecture == "decoder" else length
        return tokens * (config.num_layers * _block(config, attended, per_weight) + head)
    # A token passes one of the two stacks.
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    cross = 2 * (config.hidden_size * queries + config.input_config.hidden_size * keys)
    encoder = config.num_layers * _block(config.input_config, length, per_weight)
    decoder = config.num_decoder_layers * (_block(config, length, per_weight) + per_weight * cross)
    return tokens * ((encoder + decoder) / 2 + head)


def _block(config: TransformerConfig, attended: float, per_weight: float) -> float:
    """Count the FLOPs per token of one block, which attends to `attended` tokens."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    size, projections = config.block_size, 3 if config.gated else 2
    feed_forward = projections * size * config.ffn_size * config.num_feed_forwards
    weights = size * (2 * queries + 2 * keys) + feed_forward
    return per_weight * weights + 12.0 * queries * attended


def measure_peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the FLOP/s of a large matrix product."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best
