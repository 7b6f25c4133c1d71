"""What every way of fine-tuning is tested with: small networks, and how to ask them."""

from __future__ import annotations

import torch
from torch import Tensor

from firth.adapt.apply import AppliedStrategy, apply
from firth.models.transformer import Transformer
from tests.models.small import BOTH, DECODERS, ENCODERS, KINDS, build, run, samples

NETWORKS = [*ENCODERS, *DECODERS, "prefix-gpt2", "prefix-biased", *BOTH]
ADAPTERS = [
    "lora:rank=3",
    "lora:rank=2,targets=all,rslora",
    "lora:rank=3,targets=attention+down,dora",
    "adapters:houlsby,reduction=4",
    "adapters:pfeiffer,reduction=4",
    "prefix:3",
    "prefix:length=3,projection=5",
    "prompt:3",
    "bitfit",
    "ia3",
]
OWN = ["full", "freeze:1", "probe", "gradual"]
HEADS = ["language", "pooler"]
TRAINED = ["pooler"]


def biased(kind: str) -> bool:
    """Whether a kind of network has biases to train."""
    return KINDS[kind].bias


def cases(*specs: str) -> list[tuple[str, str]]:
    """Every kind of network with every way of fine-tuning that it can have."""
    pairs = [(kind, spec) for kind in NETWORKS for spec in specs]
    return [(kind, spec) for kind, spec in pairs if spec != "bitfit" or biased(kind)]


def fresh(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """The base, always the same."""
    return build(KINDS[kind], HEADS, dtype)


def stirred(
    network: Transformer, spec: str, name: str = "default", seed: int = 0
) -> AppliedStrategy:
    """An adapter in which every number makes a difference."""
    adapted = apply(network, spec, name=name, heads=TRAINED, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.parameters.values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.2 * noise.to(parameter.dtype)
    return adapted


def said(network: Transformer, kind: str) -> Tensor:
    """What a network says of some sequences: its vectors, and what a head makes of them."""
    with torch.no_grad():
        hidden = torch.cat(run(network, samples(kind)))
        return torch.cat([hidden, network.heads["pooler"](hidden)], dim=-1)


def differ(first: Tensor, second: Tensor) -> float:
    """The largest difference, against the largest number there is."""
    return float((first - second).abs().max() / max(1.0, float(second.abs().max())))
