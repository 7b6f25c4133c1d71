"""What stands on top of a network and predicts. Each works on the predicted positions alone.

P  predicted positions     S  sequences     W  width     V  vocabulary     E  embedding width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from firth.errors import Misuse
from firth.models.config import ModelConfig
from firth.models.labels import LABEL_HEADS, LabelHead
from firth.models.layers import ACTIVATIONS, make_norm


class LanguageHead(nn.Module):
    """Which token stands here: the head of masked, causal and denoising models alike."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        wide, table = config.width, config.table_width
        self.scale = float(wide**-0.5) if config.head_scale else 1.0
        self.extends = config.trigrams and config.tied  # MobileBERT: the table is too narrow
        out = wide if self.extends else config.output_width or table
        self.transform = self.norm = None
        if config.head_transform:
            self.transform = nn.Linear(wide, out, bias=config.transform_bias)
            self.activation = ACTIVATIONS[config.head_activation]
            self.norm = (
                nn.LayerNorm(out, eps=config.norm_eps)
                if config.norm == "affine"
                else make_norm(config, out)
            )
        self.weight = None if config.tied else nn.Parameter(torch.empty(config.vocabulary, out))
        self.extension = None
        if self.extends:
            self.extension = nn.Parameter(torch.empty(wide - table, config.vocabulary))
        self.bias: Tensor | None
        if config.head_bias == "fixed":
            self.register_buffer("bias", torch.zeros(config.vocabulary))
        else:
            trained = config.head_bias == "trained"
            self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if trained else None
        self.output: nn.Module | None = None  # instead of a matrix, where it has fewer bits

    def prepare(self, hidden: Tensor) -> Tensor:
        """What is multiplied with the output matrix."""  # (P, W) -> (P, E)
        if self.transform is not None and self.norm is not None:
            hidden = self.norm(self.activation(self.transform(hidden)))
        return hidden * self.scale if self.scale != 1.0 else hidden

    def matrix(self, table: Tensor) -> Tensor:
        """The output matrix, given the table of token embeddings."""  # (V, E)
        if self.weight is not None:
            return self.weight
        return table if self.extension is None else torch.cat([table, self.extension.T], dim=1)

    def forward(self, hidden: Tensor, table: Tensor) -> Tensor:
        ready = self.prepare(hidden)
        if self.output is not None:
            return self.output(ready)
        matrix = self.matrix(table)
        if ready.is_cuda and len(ready) > 1 and len(matrix) % 8:
            # A GPU is slow to write rows of an odd number of scores, so it writes columns.
            found = (matrix @ ready.mT).mT
            return found if self.bias is None else found + self.bias
        return linear(ready, matrix, self.bias)


class Pooler(nn.Module):
    """One vector for a sequence, from that of its first token (BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))  # (S, W)


class PairHead(nn.Module):
    """Whether the second text follows the first (NSP), or in which order they stand (SOP)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, 2)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.dense(pooled)  # (S, 2)


class ReplacedHead(nn.Module):
    """Whether a token was put there by the generator (Clark et al. 2020, ELECTRA)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.output = nn.Linear(config.width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)  # (P,)


class BoundaryHead(nn.Module):
    """A token of a hidden span, from the two tokens beside the span and its place inside.

    Joshi et al. 2020 (SpanBERT), section 3.2; the output matrix is that of the token embeddings.
    """

    PLACES = 30  # the longest span whose places differ

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        wide, table = config.width, config.table_width
        self.places = nn.Embedding(self.PLACES, wide)
        self.first = nn.Linear(3 * wide, wide)
        self.first_norm = nn.LayerNorm(wide, eps=config.norm_eps)
        self.second = nn.Linear(wide, table)
        self.second_norm = nn.LayerNorm(table, eps=config.norm_eps)

    def prepare(self, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """What is multiplied with the output matrix; places count from 1."""  # (P, E)
        places = self.places((place - 1).clamp(max=self.PLACES - 1))
        hidden = self.first_norm(gelu(self.first(torch.cat([left, right, places], dim=-1))))
        return self.second_norm(gelu(self.second(hidden)))

    def forward(self, left: Tensor, right: Tensor, place: Tensor, table: Tensor) -> Tensor:
        return linear(self.prepare(left, right, place), table)  # (P, V)


def _labels(count: Callable[[ModelConfig], int]) -> Callable[[ModelConfig], nn.Module]:
    return lambda config: LabelHead(config, count(config))


HEADS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "language": LanguageHead,
    "pooler": Pooler,
    "pair": PairHead,
    "replaced": ReplacedHead,
    "boundary": BoundaryHead,
    **{name: _labels(count) for name, count in LABEL_HEADS.items()},
}


def make_head(name: str, config: ModelConfig) -> nn.Module:
    """A head by its name."""
    if name not in HEADS:
        raise Misuse(f"There is no head {name!r}; known are {', '.join(HEADS)}.")
    return HEADS[name](config)
