"""Attention of a recurrent decoder on its source: how well each source token matches a state.

    B  sequences     T  states of the decoder     L  source tokens     W  hidden size

    additive         score(s, h) = v · tanh(A s + U h)   (Bahdanau et al. 2015, appendix A.1.2)
    multiplicative   score(s, h) = s · A h               (Luong et al. 2015, section 3.1, "general")

The softmax of a state's scores over the source are its attention weights, a soft alignment; the sum
of the source's vectors with these weights is its context.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Compute weights that are 0 where a row is padded and add up to 1 elsewhere.

    >>> scores, visible = torch.tensor([[[1.0, 1.0, 9.0]]]), torch.tensor([[True, True, False]])
    >>> masked_softmax(scores, visible).tolist()
    [[[0.5, 0.5, 0.0]]]
    """  # (B, T, L), (B, L) -> (B, T, L)
    return scores.masked_fill(~visible[:, None], -torch.inf).softmax(-1)


class AdditiveAttention(nn.Module):
    """Score states and source with a small feed-forward network (Bahdanau et al. 2015).

    With A and U the identity and v = (1, 1), the state (1, 0) scores the source (0, 0) with
    tanh(1) + tanh(0) = 0.76 and the source (1, 0) with tanh(2) = 0.96:

    >>> attention = AdditiveAttention(2)
    >>> _ = nn.init.eye_(attention.query.weight), nn.init.eye_(attention.key.weight)
    >>> _ = nn.init.zeros_(attention.key.bias), nn.init.ones_(attention.score.weight)
    >>> state, source = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
    >>> weights = attention(state, attention.keys(source), torch.tensor([[True, True]]))
    >>> [round(weight, 3) for weight in weights.flatten().tolist()]  # softmax of 0.762 and 0.964
    [0.45, 0.55]
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size)
        self.score = nn.Linear(size, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """Compute what the source contributes to the scores, once for all steps."""  # (B, L, W)
        return self.key(memory)

    def forward(self, states: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """Compute attention weights: (B, T, W) and (B, L, W) -> (B, T, L)."""
        # One state at a time: (B, T, L, W) would not fit into a processor's cache.
        scores = [
            self.score((query[:, None] + keys).tanh()) for query in self.query(states).unbind(1)
        ]
        return masked_softmax(torch.cat(scores, -1).mT, visible)


class MultiplicativeAttention(nn.Module):
    """Score states and source with a bilinear form (Luong et al. 2015).

    With A the identity, a score is a dot product: here 1 · 1 = 1 and 1 · 0 = 0.

    >>> attention = MultiplicativeAttention(2)
    >>> _ = nn.init.eye_(attention.key.weight)
    >>> state, source = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    >>> weights = attention(state, attention.keys(source), torch.tensor([[True, True]]))
    >>> [round(weight, 3) for weight in weights.flatten().tolist()]  # softmax of 1 and 0
    [0.731, 0.269]
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.key = nn.Linear(size, size, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        """Compute what the source contributes to the scores, once for all steps."""  # (B, L, W)
        return self.key(memory)

    def forward(self, states: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """Compute attention weights: (B, T, W) and (B, L, W) -> (B, T, L)."""
        return masked_softmax(states @ keys.mT, visible)


ATTENTIONS: dict[str, type[AdditiveAttention] | type[MultiplicativeAttention]] = {
    "bahdanau": AdditiveAttention,
    "luong": MultiplicativeAttention,
}
