"""A plain LoRA linear layer (Hu et al. 2021, section 4.1), the truth that tests compare with.

R  rank     I  input features     O  output features
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ReferenceLora(nn.Module):
    """Compute x Wᵀ + b + (alpha / rank) · x Aᵀ Bᵀ with a frozen W; initially B = 0."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features))  # (R, I)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))  # (O, R)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = x @ self.a.T @ self.b.T  # (…, I) -> (…, R) -> (…, O)
        out: Tensor = self.linear(x)
        return out + self.scale * update
