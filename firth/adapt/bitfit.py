"""BitFit: train what is added, and nothing that multiplies (Ben Zaken et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firth.adapt.changes import Change, base_modules, parameter
from firth.errors import MismatchError
from firth.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True)
class Bitfit:
    """There is nothing to choose: every bias is trained."""


class Shift(Change):
    """What is added to a bias."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias = parameter(torch.zeros_like(bias), bias)

    def after(self, host: nn.Module, x: Tensor, out: Tensor, plain: Tensor) -> Tensor:
        return out + (self.share * self.bias).to(out.dtype)

    def merge(self, host: nn.Module) -> dict[str, Tensor]:
        bias: Any = host.bias
        return {"bias": bias + self.share * self.bias}


def bitfit(network: Transformer, options: Bitfit, seed: int) -> dict[str, Change]:
    """A shift for every bias of the encoder and the decoder, those of norms too."""
    made: dict[str, Change] = {
        path: Shift(bias)
        for path, module in base_modules(network)
        if path.startswith(("encoder.", "decoder."))
        and isinstance(bias := getattr(module, "bias", None), Tensor)
    }
    if not made:
        raise MismatchError(
            "This network has no biases, so bitfit has nothing to train; take ia3 or lora."
        )
    return made
