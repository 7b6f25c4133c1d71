"""Small models of every architecture, and a few sequences to run them on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from firth.models.initialization import initialise
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig

VOCABULARY = 40
PADDING = 0


def small(architecture: str, **fields: Any) -> TransformerConfig:
    """Return the config of a model with two layers and no dropout."""
    size = dict(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=4,
        ffn_size=24,
        max_positions=32,
    )
    still = dict(dropout=0.0, attention_dropout=0.0)
    return TransformerConfig(architecture=architecture, **{**size, **still, **fields})


PRE = dict(norm_position="pre", embedding_norm=False)
LLAMA = dict(**PRE, norm="rms", norm_eps=1e-6, bias=False, gated=True, activation="silu")
ROTARY = dict(position_embedding="rotary")
T5 = dict(
    **PRE,
    norm="rms",
    norm_eps=1e-6,
    position_embedding="none",
    relative_attention="bias",
    relative_buckets=8,
    relative_max_distance=12,
    bias=False,
    activation="relu",
    attention_scale=1.0,
    head_scale=True,
)

ENCODERS = {
    "bert": small("encoder", num_segments=2, head_transform=True, head_bias="trained"),
    "modernbert": small(
        "encoder",
        **{**LLAMA, **ROTARY, "norm": "layer", "norm_bias": False, "embedding_norm": True},
        local_rope_theta=100.0,
        window=2,
        windowed_layers=(1,),
        first_norm=False,
    ),
    "original": small(
        "encoder", position_embedding="sinusoidal", embedding_scale=True, activation="relu"
    ),
    "deberta": small(
        "encoder",
        position_embedding="none",
        relative_attention="disentangled",
        relative_buckets=4,
        relative_max_distance=10,
    ),
    "albert": small("encoder", share_layers=True, embedding_size=8, num_segments=2),
    "mobilebert": small(
        "encoder",
        norm="affine",
        bottleneck_size=8,
        num_feed_forwards=2,
        embedding_size=8,
        trigrams=True,
        activation="relu",
    ),
    "qk-norm": small("encoder", **LLAMA, **ROTARY, qk_norm=True),
}
DECODERS = {
    "gpt2": small("decoder", **PRE, activation="gelu-tanh"),
    "llama": small("decoder", **LLAMA, **ROTARY, num_kv_heads=2, tie_embeddings=False),
    "windowed": small("decoder", **LLAMA, **ROTARY, window=3, windowed_layers=(0,)),
    "wide-heads": small("decoder", **LLAMA, **ROTARY, qk_norm=True, head_dim=6, num_kv_heads=1),
    "biased": small("decoder", **T5),
}
PREFIXED = {f"prefix-{name}": config for name, config in DECODERS.items()}
BOTH = {
    "t5": small("encoder-decoder", **T5, num_decoder_layers=1),
    "bart": small("encoder-decoder", position_offset=2, head_bias="fixed"),
    "shared": small("encoder-decoder", **T5, share_encoder_decoder=True),
}
KINDS = {**ENCODERS, **DECODERS, **PREFIXED, **BOTH}


def build(
    config: TransformerConfig,
    heads: Iterable[str] = ("language",),
    dtype: torch.dtype = torch.float32,
) -> Transformer:
    """Build a model with noise on every parameter, biases and norms too."""
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
    """One sequence with a bidirectional prefix; an encoder-decoder's has a source."""

    tokens: Tensor
    prefix: int
    segments: Tensor | None = None
    source: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def padded(self, length: int) -> Sample:
        """Pad on the right, where no real token attends to."""
        filled = self.tokens.new_full((length,), PADDING)
        filled[: len(self)] = self.tokens
        segments = None
        if self.segments is not None:
            segments = filled.new_zeros(length)
            segments[: len(self)] = self.segments
        return replace(self, tokens=filled, segments=segments)


LENGTHS = (7, 12, 1, 6, 12, 2)  # of very different length, so that there are several groups


def samples(kind: str, lengths: Iterable[int] = LENGTHS) -> list[Sample]:
    """Return random sequences for a kind of model."""
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
            draw(length, 0, 2) if KINDS[kind].num_segments else None,
            draw(3 + 2 * length % 7) if kind in BOTH else None,
        )
        for length in lengths
    ]


def run(
    network: Transformer, batch: list[Sample], device: str = "cpu", **given: Any
) -> list[Tensor]:
    """Return the hidden states of each sequence, computed in one packed batch."""
    lengths = [len(sample) for sample in batch]
    mask = Mask(lengths, prefix=[sample.prefix for sample in batch], device=device)
    if batch[0].segments is not None:
        given["segments"] = torch.cat([sample.segments for sample in batch]).to(device)
    if batch[0].source is not None:
        given["memory_mask"] = Mask([len(sample.source) for sample in batch], device=device)
        sources = torch.cat([sample.source for sample in batch]).to(device)
        given["memory"] = network.encode(sources, given["memory_mask"])
    tokens = torch.cat([sample.tokens for sample in batch]).to(device)
    return list(network(tokens, mask, **given).split(lengths))


def gradients(network: Transformer, outputs: list[Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a function of the outputs for all parameters."""
    weights = torch.linspace(-1, 1, outputs[0].shape[-1], dtype=outputs[0].dtype)
    loss = sum((output.tanh() @ weights).square().mean() for output in outputs)
    network.zero_grad()
    loss.backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {name: gradient.clone() for name, gradient in found.items()}


class LargeTensors(TorchDispatchMode):
    """Collects the storages of new tensors with at least this many elements."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.found: dict[int, Tensor] = {}  # by address; kept, so that no address is used twice

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        made = function(*arguments, **options or {})
        if isinstance(made, Tensor) and made.numel() >= self.size:
            self.found[made.untyped_storage().data_ptr()] = made
        return made
