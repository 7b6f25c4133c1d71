"""Weight initialization, as each model family publishes it.

    normal            every matrix from a normal distribution (BART, Llama)
    truncated         the same, truncated at two standard deviations (BERT)
    scaled            normal; residual projections are scaled down by depth (GPT-2)
    scaled-truncated  both (ModernBERT)
    fan-in            by the number of inputs; attention scores are not scaled (T5)
    xavier            uniform, by inputs and outputs (the original Transformer)

LSTM and GRU layers have one rule of their own, whatever the rest of the network has.

Each parameter is drawn from its own generator, seeded by the run's seed and its name, so its
initial value does not depend on which other modules exist.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from firth.models.config import ModelConfig
from firth.models.language_model import LanguageNetwork
from firth.models.layers import GemmaRMSNorm
from firth.models.transformer_config import TransformerConfig
from firth.utils.rng import derive_key

# Projections into the residual stream; ModernBERT also scales the head's transform.
RESIDUAL = (
    "attention.output.weight:0",
    "cross.output.weight:0",
    "feed_forward.down.weight:0",
    "heads.language.transform.weight:0",
)
QUERIES = ("attention.qkv.weight:0", "cross.query.weight:0")
Network = TypeVar("Network", bound=LanguageNetwork)


@torch.no_grad()
def initialise(network: Network, seed: int) -> Network:
    """Initialize all weights in place.

    >>> from firth.models.presets import preset
    >>> from firth.models.transformer import Transformer
    >>> network = initialise(Transformer(preset("bert-tiny").config), seed=1)
    >>> round(network.tokens.weight.std().item(), 3)
    0.018
    """
    initialise_parameters(network, [name for name, _ in network.named_parameters()], seed)
    return network


def initialise_head(network: LanguageNetwork, name: str, seed: int) -> None:
    """Initialize the weights of one head."""
    names = [f"heads.{name}.{own}" for own, _ in network.heads[name].named_parameters()]
    initialise_parameters(network, names, seed)


@torch.no_grad()
def initialise_parameters(network: LanguageNetwork, names: Iterable[str], seed: int) -> None:
    """Initialize the named parameters."""
    for name in names:
        of_encoder = name.startswith(("encoder.", "encoder_tokens."))
        config = network.config.input_config if of_encoder else network.config
        _initialise(name, network, config, seed)


def _initialise(name: str, network: LanguageNetwork, config: ModelConfig, seed: int) -> None:
    module, parameter = network.get_submodule(name.rpartition(".")[0]), network.get_parameter(name)
    if isinstance(module, nn.RNNBase):
        _initialise_recurrent(name, parameter, module, seed)
    elif name.endswith("bias"):
        parameter.zero_()
    elif parameter.dim() < 2:  # the weight of a norm
        parameter.fill_(0.0 if isinstance(module, GemmaRMSNorm) else 1.0)
    else:
        generator = torch.Generator().manual_seed(parameter_seed(name, seed))
        drawn = torch.empty(parameter.shape, dtype=torch.float32)
        splits = getattr(module, "splits", (parameter.shape[0],))
        for i, part in enumerate(drawn.split(splits)):
            _fill(f"{name}:{i}", part, module, config, generator)
        parameter.copy_(drawn)


def _initialise_recurrent(name: str, parameter: Tensor, module: nn.RNNBase, seed: int) -> None:
    """Draw matrices uniformly, within 1 / sqrt(hidden size) (Merity et al. 2018, section 5).

    Biases are 0, and 1 in the forget gate of an LSTM (Jozefowicz et al. 2015, section 5): it
    remembers at first.
    """
    size = module.hidden_size
    if ".bias_" in name:
        parameter.zero_()
        if isinstance(module, nn.LSTM) and ".bias_ih_" in name:
            parameter[size : 2 * size] = 1.0  # of the input, forget, cell and output gates
        return
    generator = torch.Generator().manual_seed(parameter_seed(name, seed))
    drawn = torch.empty(parameter.shape, dtype=torch.float32)
    parameter.copy_(drawn.uniform_(-(size**-0.5), size**-0.5, generator=generator))


def parameter_seed(name: str, seed: int) -> int:
    """Derive the seed of one parameter's generator."""
    return int(derive_key(seed, zlib.crc32(name.encode()))) & (2**63 - 1)


def _fill(
    name: str,
    part: Tensor,
    module: nn.Module,
    config: ModelConfig,
    generator: torch.Generator,
) -> None:
    kind = config.initialization
    embedding = isinstance(module, nn.Embedding) or name.startswith("heads.language.weight")
    if kind == "xavier" and not embedding:
        kernel = math.prod(part.shape[2:])  # of a convolution
        bound = math.sqrt(6.0 / (sum(part.shape[:2]) * kernel))
        part.uniform_(-bound, bound, generator=generator)
        return
    std = _std(name, part, embedding, config)
    if kind.endswith("truncated"):
        _truncated_normal(part, std, generator)
    else:
        part.normal_(0.0, std, generator=generator)


def _truncated_normal(part: Tensor, std: float, generator: torch.Generator) -> None:
    """Draw again what is beyond two standard deviations.

    torch 2.11 and 2.13 draw different values in `trunc_normal_`, so that is not used here.
    """
    part.normal_(0.0, std, generator=generator)
    while (outside := part.abs() > 2 * std).any():
        again = torch.empty_like(part).normal_(0.0, std, generator=generator)
        part.copy_(torch.where(outside, again, part))


def _std(name: str, part: Tensor, embedding: bool, config: ModelConfig) -> float:
    """Return the standard deviation of a matrix."""
    kind = config.initialization
    if kind == "xavier":  # embeddings, which are multiplied by sqrt(hidden_size) afterwards
        return float(config.hidden_size**-0.5)
    if kind == "fan-in":
        return config.init_std * _fan_in(name, part, embedding, config)
    depth = config.num_layers + config.num_decoder_layers
    if kind.startswith("scaled") and name.endswith(RESIDUAL):
        return config.init_std / math.sqrt(2 * depth)
    return config.init_std


def _fan_in(name: str, part: Tensor, embedding: bool, config: ModelConfig) -> float:
    """Return T5's standard deviations; queries include the scale of the attention scores."""
    if embedding:
        return 1.0
    if ".relative." in name:
        return float(config.hidden_size**-0.5)
    scale = 1.0
    if isinstance(config, TransformerConfig) and name.endswith(QUERIES):
        scale = config.head_dim**-0.5
    return float(scale * part[0].numel() ** -0.5)
