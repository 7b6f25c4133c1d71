"""Small networks of every kind, and a few sequences to run them on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from firth.models.config import ModelConfig
from firth.models.initial import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer

VOCABULARY = 40
PADDING = 0


def small(architecture: str, **fields: Any) -> ModelConfig:
    """A network of two layers with no dropout."""
    size = dict(vocabulary=VOCABULARY, width=16, layers=2, heads=4, inner=24, context=32)
    still = dict(dropout=0.0, attention_dropout=0.0)
    return ModelConfig(architecture=architecture, **{**size, **still, **fields})


PRE = dict(norm_place="pre", embedding_norm=False)
LLAMA = dict(**PRE, norm="rms", norm_eps=1e-6, bias=False, gated=True, activation="silu")
ROTARY = dict(positions="rotary")
T5 = dict(
    **PRE,
    norm="rms",
    norm_eps=1e-6,
    positions="none",
    relative="bias",
    buckets=8,
    distance=12,
    bias=False,
    activation="relu",
    attention_scale=1.0,
    head_scale=True,
)

ENCODERS = {
    "bert": small("encoder", segments=2, head_transform=True, head_bias="trained"),
    "modernbert": small(
        "encoder",
        **{**LLAMA, **ROTARY, "norm": "layer", "norm_bias": False, "embedding_norm": True},
        local_theta=100.0,
        window=2,
        windowed=(1,),
        first_norm=False,
    ),
    "original": small("encoder", positions="sinusoidal", embedding_scale=True, activation="relu"),
    "deberta": small("encoder", positions="none", relative="disentangled", buckets=4, distance=10),
    "albert": small("encoder", shared=True, embedding_width=8, segments=2),
    "mobilebert": small(
        "encoder",
        norm="affine",
        bottleneck=8,
        feed_forwards=2,
        embedding_width=8,
        trigrams=True,
        activation="relu",
    ),
    "qk-norm": small("encoder", **LLAMA, **ROTARY, qk_norm=True),
}
DECODERS = {
    "gpt2": small("decoder", **PRE, activation="gelu-tanh"),
    "llama": small("decoder", **LLAMA, **ROTARY, kv_heads=2, tied=False),
    "windowed": small("decoder", **LLAMA, **ROTARY, window=3, windowed=(0,)),
    "wide-heads": small("decoder", **LLAMA, **ROTARY, qk_norm=True, head_width=6, kv_heads=1),
    "biased": small("decoder", **T5),
}
PREFIXED = {f"prefix-{name}": config for name, config in DECODERS.items()}
BOTH = {
    "t5": small("encoder-decoder", **T5, decoder_layers=1),
    "bart": small("encoder-decoder", position_offset=2, head_bias="fixed"),
}
KINDS = {**ENCODERS, **DECODERS, **PREFIXED, **BOTH}


def build(
    config: ModelConfig, heads: Iterable[str] = ("language",), dtype: torch.dtype = torch.float32
) -> Transformer:
    """A network in which every parameter, biases and norms too, makes a difference."""
    network = initialise(Transformer(config, heads), seed=7).to(dtype)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += (0.15 * noise).to(dtype)
        network.tokens.weight[PADDING] = 0.0
    network.tokens.padding_idx = PADDING  # so that padding by hand leaves no gradient
    return network.eval()


@dataclass(frozen=True)
class Sample:
    """One sequence; `prefix` of its tokens see both ways, and a decoder may have a source."""

    tokens: Tensor
    prefix: int
    segments: Tensor | None = None
    source: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def padded(self, length: int) -> Sample:
        """Filled up with tokens that see what stands before them and are seen by nothing real."""
        filled = self.tokens.new_full((length,), PADDING)
        filled[: len(self)] = self.tokens
        segments = None
        if self.segments is not None:
            segments = filled.new_zeros(length)
            segments[: len(self)] = self.segments
        return replace(self, tokens=filled, segments=segments)


LENGTHS = (7, 12, 1, 6, 12, 2)  # of very different length, so that there are several groups


def samples(kind: str, lengths: Iterable[int] = LENGTHS) -> list[Sample]:
    """Sequences for a kind of network."""
    generator = torch.Generator().manual_seed(3)

    def draw(length: int, low: int = 1, high: int = VOCABULARY) -> Tensor:
        return torch.randint(low, high, (length,), generator=generator)

    def prefix(length: int) -> int:
        if kind in ENCODERS:
            return length
        return length // 2 if kind in PREFIXED else 0

    return [
        Sample(
            draw(length),
            prefix(length),
            draw(length, 0, 2) if KINDS[kind].segments else None,
            draw(3 + 2 * length % 7) if kind in BOTH else None,
        )
        for length in lengths
    ]


def run(network: Transformer, batch: list[Sample], device: str = "cpu") -> list[Tensor]:
    """What the heads see of each sequence, all of them in one stream."""
    lengths = [len(sample) for sample in batch]
    mask = Mask(lengths, prefix=[sample.prefix for sample in batch], device=device)
    given: dict[str, Any] = {}
    if batch[0].segments is not None:
        given["segments"] = torch.cat([sample.segments for sample in batch]).to(device)
    if batch[0].source is not None:
        given["memory_mask"] = Mask([len(sample.source) for sample in batch], device=device)
        sources = torch.cat([sample.source for sample in batch]).to(device)
        given["memory"] = network.encode(sources, given["memory_mask"])
    tokens = torch.cat([sample.tokens for sample in batch]).to(device)
    return list(network(tokens, mask, **given).split(lengths))


def gradients(network: Transformer, outputs: list[Tensor]) -> dict[str, Tensor]:
    """The gradient of some function of the outputs, for every parameter it reaches."""
    weights = torch.linspace(-1, 1, outputs[0].shape[-1], dtype=outputs[0].dtype)
    loss = sum((output.tanh() @ weights).square().mean() for output in outputs)
    network.zero_grad()
    loss.backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {name: gradient.clone() for name, gradient in found.items()}
