"""Heads for labels: of a sequence, of each token, of where an answer begins and ends.

S  sequences     N  tokens of the stream     P  some of them     W  width     K  labels
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from firth.models.config import ModelConfig
from firth.models.layers import ACTIVATIONS, make_norm


class LabelHead(nn.Module):
    """Layers on request, then one score for each label."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        wide, layers = config.width, range(config.label_layers)
        bias = config.label_bias
        self.layers = nn.ModuleList(nn.Linear(wide, wide, config.transform_bias) for _ in layers)
        self.activation = (
            torch.tanh
            if config.label_activation == "tanh"
            else ACTIVATIONS[config.label_activation]
        )
        self.norm = make_norm(config, wide) if config.label_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(wide, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(self.dropout(x)))
        return self.output(self.dropout(self.norm(x)))  # (…, K)


# Each head for labels, and how many scores it gives.
LABEL_HEADS: dict[str, Callable[[ModelConfig], int]] = {
    "classify": lambda config: len(config.labels),  # of a sequence
    "choose": lambda config: 1,  # of a sequence among others
    "tag": lambda config: len(config.labels),  # of a token
    "span": lambda config: 2,  # of a token: does the answer begin here, does it end here
}


def within(scores: Tensor, starts: Tensor) -> Tensor:
    """The logarithm of each token's share among the tokens of its sequence.

    >>> within(torch.zeros(3), torch.tensor([0, 2, 3])).exp().tolist()
    [0.5, 0.5, 1.0]
    """  # (N,) -> (N,)
    lengths = starts[1:] - starts[:-1]
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=scores.device), lengths)
    peaks = scores.new_full((len(lengths),), -torch.inf)
    peaks = peaks.scatter_reduce(0, owners, scores.detach(), "amax")
    shifted = scores - peaks[owners]
    sums = torch.zeros_like(peaks).index_add(0, owners, shifted.exp())
    return shifted - sums.log()[owners]
