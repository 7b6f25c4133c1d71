"""The first weights of a network, as each family publishes them.

    normal            every matrix from a normal distribution (BART, Llama)
    truncated         the same, cut off at two deviations (BERT)
    scaled            normal; what is added to the stream shrinks with depth (GPT-2)
    scaled-truncated  both (ModernBERT)
    fan-in            by the number of inputs, so that scores need no scaling (T5)
    xavier            uniform, by inputs and outputs (the original Transformer)

Each parameter is drawn from its own generator, seeded by the run's seed and its name: the same
network begins the same whatever else is built beside it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from firth.draws import derive_one
from firth.models.config import ModelConfig
from firth.models.layers import PlusOne
from firth.models.transformer import Transformer

# What a block adds to the stream; ModernBERT shrinks the projection before its output alike.
RESIDUAL = (
    "attention.output.weight:0",
    "cross.output.weight:0",
    "feed_forward.down.weight:0",
    "heads.language.transform.weight:0",
)
QUERIES = ("attention.qkv.weight:0", "cross.query.weight:0")


@torch.no_grad()
def initialise(network: Transformer, seed: int) -> Transformer:
    """Draw every weight anew.

    >>> from firth.models.presets import preset
    >>> network = initialise(Transformer(preset("bert-tiny").config), seed=1)
    >>> round(network.tokens.weight.std().item(), 3)
    0.018
    """
    initialise_some(network, [name for name, _ in network.named_parameters()], seed)
    return network


def initialise_head(network: Transformer, name: str, seed: int) -> None:
    """Draw the weights of one head anew."""
    names = [f"heads.{name}.{own}" for own, _ in network.heads[name].named_parameters()]
    initialise_some(network, names, seed)


@torch.no_grad()
def initialise_some(network: Transformer, names: Iterable[str], seed: int) -> None:
    """Draw these weights anew."""
    for name in names:
        reads = name.startswith(("encoder.", "reader_tokens."))
        config = network.config.reading if reads else network.config
        _draw(name, network, config, seed)


def _draw(name: str, network: Transformer, config: ModelConfig, seed: int) -> None:
    module, parameter = network.get_submodule(name.rpartition(".")[0]), network.get_parameter(name)
    if name.endswith("bias"):
        parameter.zero_()
    elif parameter.dim() < 2:  # the weight of a norm
        parameter.fill_(0.0 if isinstance(module, PlusOne) else 1.0)
    else:
        generator = torch.Generator().manual_seed(seed_of(name, seed))
        drawn = torch.empty(parameter.shape, dtype=torch.float32)
        splits = getattr(module, "splits", (parameter.shape[0],))
        for i, part in enumerate(drawn.split(splits)):
            _fill(f"{name}:{i}", part, module, config, generator)
        parameter.copy_(drawn)


def seed_of(name: str, seed: int) -> int:
    """The seed of one parameter's generator."""
    return int(derive_one(seed, zlib.crc32(name.encode()))) & (2**63 - 1)


def _fill(
    name: str, part: Tensor, module: nn.Module, config: ModelConfig, generator: torch.Generator
) -> None:
    kind = config.initialisation
    embedding = isinstance(module, nn.Embedding) or name.startswith("heads.language.weight")
    if kind == "xavier" and not embedding:
        bound = math.sqrt(6.0 / sum(part.shape))
        part.uniform_(-bound, bound, generator=generator)
        return
    spread = _spread(name, part, embedding, config)
    if kind.endswith("truncated"):
        nn.init.trunc_normal_(part, 0.0, spread, -2 * spread, 2 * spread, generator=generator)
    else:
        part.normal_(0.0, spread, generator=generator)


def _spread(name: str, part: Tensor, embedding: bool, config: ModelConfig) -> float:
    """The standard deviation of a matrix."""
    kind = config.initialisation
    if kind == "xavier":  # embeddings, which are multiplied by sqrt(width) afterwards
        return float(config.width**-0.5)
    if kind == "fan-in":
        return config.spread * _fan_in(name, part, embedding, config)
    depth = config.layers + config.decoder_layers
    if kind.startswith("scaled") and name.endswith(RESIDUAL):
        return config.spread / math.sqrt(2 * depth)
    return config.spread


def _fan_in(name: str, part: Tensor, embedding: bool, config: ModelConfig) -> float:
    """T5's deviations: queries also carry the scale that its scores lack."""
    if embedding:
        return 1.0
    if ".relative." in name:
        return float(config.width**-0.5)
    scale = config.head_width**-0.5 if name.endswith(QUERIES) else 1.0
    return float(scale * part.shape[1] ** -0.5)
