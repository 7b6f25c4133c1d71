"""Small networks with adapters, for the tests of all fine-tuning strategies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from firth.adapt.apply import AppliedStrategy, apply
from firth.models.transformer import Transformer
from tests.models.small import BOTH, DECODERS, ENCODERS, KINDS, build, run, samples
from tests.nightly import mostly_nightly

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


def cases(*specs: str) -> list[Any]:
    """Every kind of network with every way of fine-tuning that it can have.

    Each time run: all ways on an encoder and on an encoder-decoder, and one way on each network.
    """
    fitting = [
        (kind, spec) for kind in NETWORKS for spec in specs if spec != "bitfit" or KINDS[kind].bias
    ]
    always = {(kind, spec) for kind, spec in fitting if kind in ("bert", "bart")}
    for index, kind in enumerate(NETWORKS):
        own = [case for case in fitting if case[0] == kind]
        always.add(own[index % len(own)])
    return mostly_nightly(fitting, always=always)


def fresh(kind: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """Build the base network, always with the same weights."""
    return build(KINDS[kind], HEADS, dtype)


def randomized(
    network: Transformer, spec: str, name: str = "default", seed: int = 0
) -> AppliedStrategy:
    """Apply an adapter and randomize its parameters."""
    adapted = apply(network, spec, name=name, heads=TRAINED, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.parameters.values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += 0.2 * noise.to(parameter.dtype)
    return adapted


def outputs_of(network: Transformer, kind: str) -> Tensor:
    """Compute the hidden states of some sequences, and the output of a head."""
    with torch.no_grad():
        hidden = torch.cat(run(network, samples(kind)))
        return torch.cat([hidden, network.heads["pooler"](hidden)], dim=-1)


def difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference, relative to the largest number."""
    return float((first - second).abs().max() / max(1.0, float(second.abs().max())))
