"""What the rest of the package needs of a model, in parts that a model implements separately.

    ScoringModel      logits of tokens in their context     evaluation, generation
    HiddenStateModel  one vector for each token             embeddings, label heads
    TrainableModel    named losses of a batch               the training loop

A count-based model implements scoring, word vectors hidden states. A `LanguageNetwork`, such as the
`Transformer`, implements both, and `firth/training/losses.py` makes any of them trainable.

N  tokens of the batch     P  some of the tokens     V  vocabulary size
S  sequences               W  hidden size            K  labels
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from firth.models.config import LanguageModelConfig, ModelConfig
from firth.models.heads import LanguageHead
from firth.models.layer_mix import LayerMix
from firth.models.masks import Mask
from firth.models.pooling import pool
from firth.objectives.batch import Batch
from firth.tokenizers.tokenizer import Tokenizer


class ScoringModel(Protocol):
    """Predicts tokens: the next one, or in an encoder the masked one."""

    @property
    def config(self) -> LanguageModelConfig: ...
    @property
    def device(self) -> torch.device: ...
    def __call__(self, tokens: Tensor, mask: Mask) -> Tensor:
        """Return what `logits` needs to know of each token and its context: (N,) -> (N, …)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits or log-probabilities, which the caller may change: (P, …) -> (P, V)."""


@runtime_checkable
class TokenScorer(Protocol):
    """Scores given tokens without the logits of all others, as count-based models can."""

    def score_tokens(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return each token's log-probability, and whether it is the top one: (P,) -> (P,), (P,).

        `hidden` is what the model returned for the P positions before the tokens.
        """


class HiddenStateModel(Protocol):
    """Computes vectors of tokens, which are pooled or given to heads."""

    training: bool

    @property
    def config(self) -> ModelConfig: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def encode(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Return hidden states: (N,) -> (N, W).

        Inputs may be `segments` and `layers`, a list that receives the hidden states of all layers.
        """

    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


@dataclass(frozen=True)
class LossTerm:
    """The loss of one kind of prediction in one batch."""

    sum: Tensor
    count: int
    num_correct: Tensor | None  # number of correct predictions, if defined
    weight: float = 1.0


class TrainableModel(Protocol):
    """Computes the losses of a batch by name; `training.losses.TrainingModule` is one."""

    @property
    def network(self) -> LanguageNetwork: ...
    @property
    def device(self) -> torch.device: ...
    def __call__(self, batch: Batch) -> dict[str, LossTerm]: ...
    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets of each loss."""

    def train(self, mode: bool = True) -> Any: ...
    def eval(self) -> Any: ...
    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def named_buffers(self) -> Iterator[tuple[str, Tensor]]: ...


class LanguageNetwork(nn.Module):
    """Base class of networks: token embeddings, and heads on the hidden states of `forward`."""

    config: ModelConfig
    tokens: nn.Embedding
    heads: nn.ModuleDict
    logits_are_linear: ClassVar[bool] = True  # the language head's matrix gives them
    has_layers = False  # whether `encode` fills `layers` and takes `output_layer`

    @property
    def device(self) -> torch.device:
        return self.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.tokens.weight.dtype

    @property
    def input_embeddings(self) -> nn.Module:
        """The module that turns token ids into vectors without context."""
        return self.tokens

    @property
    def fixed_parameters(self) -> tuple[str, ...]:
        """The first parts of the names of parameters that no strategy trains; here none."""
        return ()

    def read_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Store what the network needs to know of the text of its tokens; here nothing."""

    def encode(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the hidden states of an input; here without segments and layers."""
        return self(tokens, mask)

    def encode_source(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the `memory` of an encoder-decoder's decoder: (M,) -> (M, …)."""
        return self.encode(tokens, mask, **inputs)

    @property
    def layer_mix(self) -> LayerMix | None:
        """The learned weighting of the layers that the label head reads, if it reads one."""
        mix = self.heads["mix"] if self.config.label_layer_mix else None
        assert mix is None or isinstance(mix, LayerMix)
        return mix

    def encode_for_labels(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the input of the label head: the last hidden states, a layer's, or a mix."""
        if (mix := self.layer_mix) is not None:
            layers: list[Tensor] = []
            self.encode(tokens, mask, layers=layers, **inputs)
            return mix(layers)
        if self.config.label_input_layer is not None:
            inputs["output_layer"] = self.config.label_input_layer
        return self.encode(tokens, mask, **inputs)

    @property
    def penalty_weights(self) -> dict[str, float]:
        """The weights of the terms that `penalties` computes, by name."""
        return {}

    def penalties(self, hidden: Tensor, mask: Mask) -> dict[str, LossTerm]:
        """Compute terms of the training loss that regularize hidden states, per token."""
        return {}

    def prediction_states(self, hidden: Tensor, *, backward: bool = False) -> Tensor:
        """Return what the language head reads of hidden states; ELMo: one direction of both."""
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute next-token (or masked-token) logits."""  # (P, W) -> (P, V)
        head = self.heads["language"]
        assert isinstance(head, LanguageHead)
        return head(self.prediction_states(hidden), self.tokens.weight)

    def label_logits(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute label logits: (S, K), or (N, K) if tokens have labels."""
        head = self.heads[self.config.label_head]
        if self.config.label_head in ("tag", "span"):
            return head(hidden)
        return head(self.pool(hidden, starts))

    def pool(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """Compute one vector per sequence; BERT's pooler transforms the first token's."""
        if self.config.pooling == "attention":
            return self.heads["attention"](hidden, starts)
        pooled = pool(hidden, starts, self.config.pooling)  # (S, W)
        has_pooler = self.config.pooling == "first" and "pooler" in self.heads
        return self.heads["pooler"](pooled) if has_pooler else pooled


def predicts_tokens(model: ScoringModel) -> bool:
    """Tell whether a model has a language head, or needs none because it is no network."""
    return not isinstance(model, LanguageNetwork) or "language" in model.heads
