"""A learned weighting of the layers of a network (ELMo, Peters et al. 2018, section 3.2).

N  tokens of the batch     W  hidden size
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from firth.models.config import ModelConfig


class LayerMix(nn.Module):
    """Compute gamma times the weighted sum of the layers; the softmax of `weights` weights them.

    The layers are the embeddings and the output of every block. Where blocks do not end with a norm
    (pre-norm), each layer is normalized first, so that the weights of layers are comparable.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.normalizes = config.input_config.norm_position != "post"
        # Learning rates are smaller in wider networks, which a few scalars do not need.
        self.lr_scale = min(16.0, max(1.0, (config.hidden_size / 192) ** 2))
        self.weights = nn.Parameter(torch.ones(config.num_layers + 1))
        self.gamma = nn.Parameter(torch.ones(1))

    @property
    def layer_weights(self) -> Tensor:
        """The weights of the layers, which sum to 1."""  # (layers + 1,)
        return self.weights.float().softmax(0)

    def values(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return {"layer_weights": self.layer_weights.tolist(), "gamma": self.gamma.item()}

    def summary(self) -> str:
        """Describe the weights of the layers in one sentence."""
        embeddings, *blocks = self.layer_weights.tolist()
        named = [f"layer {number} {weight:.1%}" for number, weight in enumerate(blocks, 1)]
        layers = ", ".join([f"embeddings {embeddings:.1%}", *named])
        return f"Learned weights of the layers: {layers}; gamma {self.gamma.item():.3g}."

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Mix the hidden states of all layers."""  # (N, W) each -> (N, W)
        if self.normalizes:
            layers = [layer_norm(layer, layer.shape[-1:]) for layer in layers]
        pairs = zip(self.gamma.float() * self.layer_weights, layers, strict=True)
        weighted = [weight * layer for weight, layer in pairs]
        return sum(weighted[1:], weighted[0])
