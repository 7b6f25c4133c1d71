"""BitFit: train only the biases (Ben Zaken et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.freeze import NoOptions
from firth.adapt.injection import InjectedModule, base_modules, new_parameter
from firth.models.transformer import Transformer
from firth.utils.errors import MismatchError


class BiasShift(InjectedModule):
    """A trainable vector added to a bias."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias = new_parameter(torch.zeros_like(bias), bias)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        return out + (self.adapter_weight * self.bias).to(out.dtype)

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        bias: Any = host.bias
        return {"bias": bias + self.adapter_weight * self.bias}


def bitfit(network: Transformer, options: NoOptions, seed: int) -> dict[str, InjectedModule]:
    """Create a shift for every bias of the encoder and the decoder, including those of norms."""
    modules: dict[str, InjectedModule] = {
        path: BiasShift(bias)
        for path, module in base_modules(network)
        if path.startswith(("encoder.", "decoder."))
        and isinstance(bias := getattr(module, "bias", None), Tensor)
    }
    if not modules:
        raise MismatchError(
            "This network has no biases, so bitfit has nothing to train; use ia3 or lora."
        )
    return modules
