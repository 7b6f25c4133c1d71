"""Heads for fine-tuning: sequence classification, multiple choice, token tagging, answer spans.

S  sequences     N  tokens of the batch     M  words with a tag     W  hidden size     K  labels
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from firth.models.activations import ACTIVATIONS
from firth.models.config import ModelConfig
from firth.models.layers import make_norm
from firth.models.pooling import CONCAT, sequence_ids_of
from firth.utils.rng import Bools


class LabelHead(nn.Module):
    """Optional hidden layers and norm, then one logit per label."""

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        size, bias = config.hidden_size, config.transform_bias
        pooled = config.label_head in ("classify", "choose") and config.pooling == "concat"
        inputs = [len(CONCAT) * size if pooled else size] + [size] * config.label_layers
        self.layers = nn.ModuleList(nn.Linear(width, size, bias) for width in inputs[:-1])
        self.activation = (
            torch.tanh
            if config.label_activation == "tanh"
            else ACTIVATIONS[config.label_activation]
        )
        self.norm = make_norm(config, inputs[-1]) if config.label_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(inputs[-1], outputs, bias=config.label_bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activation(layer(self.dropout(x)))
        return self.output(self.dropout(self.norm(x)))  # (…, K)

    def tag_losses(self, logits: Tensor, targets: Tensor, lengths: Sequence[int]) -> Tensor:
        """Compute the loss of each word's tag, or of each sequence of tags."""  # (M, K), (M,)
        return cross_entropy(logits, targets, reduction="none")

    def tag_probabilities(
        self, logits: Tensor, lengths: Sequence[int], allowed: Bools | None = None
    ) -> Tensor:
        """Compute the probability of each tag; the answer is the most probable."""  # (M, K)
        return logits.softmax(-1)


class AttentionPooling(nn.Module):
    """Pool hidden states with learned weights (Yang et al. 2016, section 2.2, word attention)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.context = nn.Linear(config.hidden_size, 1, bias=False)

    def weights(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute the weight of each token; those of a sequence sum to 1."""  # (N, W) -> (N,)
        scores = self.context(torch.tanh(self.dense(hidden))).squeeze(-1)
        return log_softmax_per_sequence(scores.float(), starts).exp()

    def forward(self, hidden: Tensor, starts: Tensor) -> Tensor:
        weighted = hidden * self.weights(hidden, starts)[:, None].to(hidden)
        sums = hidden.new_zeros(len(starts) - 1, hidden.shape[1])
        return sums.index_add(0, sequence_ids_of(starts), weighted)  # (S, W)


# The number of outputs of each head.
LABEL_HEADS: dict[str, Callable[[ModelConfig], int]] = {
    "classify": lambda config: len(config.labels),  # for each sequence
    "choose": lambda config: 1,  # for each of several sequences, one of which is right
    "tag": lambda config: len(config.labels),  # for each token
    "span": lambda config: 2,  # for each token: the answer starts here, ends here
}


def label_modules(config: ModelConfig) -> list[str]:
    """Return the names of the modules from the hidden states to the labels."""
    return ["mix"] * config.label_layer_mix + ["pooler", "attention", config.label_head]


def predicts_labels(network: nn.Module) -> bool:
    """Tell whether a network has a head for labels."""
    return bool(LABEL_HEADS.keys() & set(getattr(network, "heads", ())))


def log_softmax_per_sequence(logits: Tensor, starts: Tensor) -> Tensor:
    """Compute the log-softmax over the tokens of each sequence.

    >>> log_softmax_per_sequence(torch.zeros(3), torch.tensor([0, 2, 3])).exp().tolist()
    [0.5, 0.5, 1.0]
    """  # (N,) -> (N,)
    sequence_ids = sequence_ids_of(starts)
    maxima = logits.new_full((len(starts) - 1,), -torch.inf)
    maxima = maxima.scatter_reduce(0, sequence_ids, logits.detach(), "amax")
    shifted = logits - maxima[sequence_ids]
    sums = torch.zeros_like(maxima).index_add(0, sequence_ids, shifted.exp())
    return shifted - sums.log()[sequence_ids]
