"""Prediction heads of pre-training; each takes the hidden states of predicted positions only.

P  predicted positions     S  sequences     W  hidden size     V  vocabulary size
E  size of the output embeddings
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from firth.models.activations import ACTIVATIONS
from firth.models.config import ModelConfig
from firth.models.crf import CrfHead
from firth.models.label_heads import LABEL_HEADS, AttentionPooling, LabelHead
from firth.models.layer_mix import LayerMix
from firth.models.layers import make_norm
from firth.utils.errors import UsageError


class LanguageHead(nn.Module):
    """Predict a token: the head of masked, causal and denoising language models."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, embedding = config.hidden_size, config.token_embedding_size
        self.scale = float(hidden**-0.5) if config.head_scale else 1.0
        # MobileBERT's token embeddings are smaller than its hidden size
        self.extends = config.extends_embeddings
        out = hidden if self.extends else config.output_embedding_size or embedding
        self.transform = self.norm = None
        if config.head_transform:
            self.transform = nn.Linear(hidden, out, bias=config.transform_bias)
            self.activation = ACTIVATIONS[config.head_activation]
            self.norm = (
                nn.LayerNorm(out, eps=config.norm_eps)
                if config.norm == "affine"
                else make_norm(config, out)
            )
        self.weight = (
            None if config.tie_embeddings else nn.Parameter(torch.empty(config.vocab_size, out))
        )
        self.extension = None
        if self.extends:
            self.extension = nn.Parameter(torch.empty(hidden - embedding, config.vocab_size))
        self.bias: Tensor | None
        if config.head_bias == "fixed":
            self.register_buffer("bias", torch.zeros(config.vocab_size))
        else:
            trained = config.head_bias == "trained"
            self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if trained else None
        self.output: nn.Module | None = None  # replaces the output matrix: int8 weights

    def prepare(self, hidden: Tensor) -> Tensor:
        """Transform and scale hidden states for the output matrix."""  # (P, W) -> (P, E)
        if self.transform is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.transform(hidden)))
        return hidden * self.scale if self.scale != 1.0 else hidden

    def matrix(self, embeddings: Tensor) -> Tensor:
        """Return the output matrix, given the token embeddings it may be tied to."""  # (V, E)
        if self.weight is not None:
            return self.weight
        if self.extension is None:
            return embeddings
        return torch.cat([embeddings, self.extension.T], dim=1)

    def forward(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        hidden = self.prepare(hidden)  # (P, E)
        if self.output is not None:
            return self.output(hidden)
        matrix = self.matrix(embeddings)
        if hidden.is_cuda and len(hidden) > 1 and len(matrix) % 8:
            # GPU kernels are slow for an unaligned vocabulary size in the last dimension.
            logits = (matrix @ hidden.mT).mT
            return logits if self.bias is None else logits + self.bias
        return linear(hidden, matrix, self.bias)  # (P, V)


class Pooler(nn.Module):
    """Transform the first token's hidden state to a sequence vector (BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))  # (S, W)


class PairHead(nn.Module):
    """Predict whether the second text follows the first (NSP), or their order (SOP)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.dense(pooled)  # (S, 2)


class ReplacedHead(nn.Module):
    """Predict whether a token was replaced by the generator (Clark et al. 2020, ELECTRA)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.activation]
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)  # (P,)


class BoundaryHead(nn.Module):
    """Predict a token of a masked span from the tokens beside the span and its position in it.

    Joshi et al. 2020 (SpanBERT), section 3.2; the output matrix is the token embedding matrix.
    """

    MAX_SPAN = 30  # positions from here on share one embedding

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, embedding = config.hidden_size, config.token_embedding_size
        self.places = nn.Embedding(self.MAX_SPAN, hidden)
        self.first = nn.Linear(3 * hidden, hidden)
        self.first_norm = nn.LayerNorm(hidden, eps=config.norm_eps)
        self.second = nn.Linear(hidden, embedding)
        self.second_norm = nn.LayerNorm(embedding, eps=config.norm_eps)

    def prepare(self, left: Tensor, right: Tensor, position: Tensor) -> Tensor:
        """Compute the input of the output matrix; positions count from 1."""  # (P, E)
        positions = self.places((position - 1).clamp(max=self.MAX_SPAN - 1))
        hidden = self.first_norm(gelu(self.first(torch.cat([left, right, positions], dim=-1))))
        return self.second_norm(gelu(self.second(hidden)))

    def forward(self, left: Tensor, right: Tensor, position: Tensor, embeddings: Tensor) -> Tensor:
        return linear(self.prepare(left, right, position), embeddings)  # (P, V)


def _labels(count: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], nn.Module]:
    return lambda config: LabelHead(config, count(config))


HEADS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "language": LanguageHead,
    "pooler": Pooler,
    "pair": PairHead,
    "replaced": ReplacedHead,
    "boundary": BoundaryHead,
    "mix": LayerMix,
    "attention": AttentionPooling,
    **{name: _labels(count) for name, count in LABEL_HEADS.items()},
    "tag": lambda config: (CrfHead if config.label_crf else LabelHead)(config, len(config.labels)),
}


def make_head(name: str, config: ModelConfig) -> nn.Module:
    """Build a head by its name."""
    if name not in HEADS:
        raise UsageError(f"There is no head {name!r}; choose one of {', '.join(HEADS)}.")
    return HEADS[name](config)
