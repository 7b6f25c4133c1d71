"""The Transformer: token embeddings, encoder and decoder stacks, and prediction heads.

N  tokens of the batch     M  tokens of the encoder's batch     V  vocabulary size
P  some of the tokens      S  sequences                         K  labels
W  hidden size             R  the encoder's hidden size         E  embedding size
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from firth.models.heads import make_head
from firth.models.kv_cache import KVCache
from firth.models.language_model import HiddenStateModel, LanguageNetwork, ScoringModel
from firth.models.masks import Mask
from firth.models.stack import Stack
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import UsageError


class Transformer(LanguageNetwork):
    """Token embeddings, an encoder or a decoder or both, and prediction heads.

    >>> sizes = dict(hidden_size=8, num_layers=1, num_heads=2, ffn_size=16)
    >>> config = TransformerConfig(architecture="encoder", vocab_size=10, max_positions=8, **sizes)
    >>> network = Transformer(config, ["language"])
    >>> network(torch.tensor([1, 2, 3, 4]), Mask([3, 1])).shape
    torch.Size([4, 8])
    """

    config: TransformerConfig
    has_layers = True

    def __init__(self, config: TransformerConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.token_embedding_size)
        self.encoder_tokens = None  # of an encoder with its own vocabulary
        if (encoder := config.encoder) is not None:
            self.encoder_tokens = nn.Embedding(encoder.vocab_size, encoder.token_embedding_size)
        self.encoder = self.decoder = None
        if config.has_encoder:
            self.encoder = Stack(config.input_config, config.num_layers, decoder=False)
        if config.has_decoder:
            memory_size = config.input_config.hidden_size if config.has_encoder else 0
            self.decoder = Stack(
                config,
                config.num_output_layers,
                decoder=True,
                memory_size=memory_size,
                encoder=self.encoder if config.share_encoder_decoder else None,
            )
        self.heads = nn.ModuleDict({name: make_head(name, config) for name in heads})
        self.inference_only = False  # set by `firth.quantization.int8`

    def train(self, mode: bool = True) -> Transformer:
        """Set training or evaluation mode; raise UsageError if the weights are int8."""
        if mode and self.inference_only:
            raise UsageError("A model with int8 weights cannot be trained: load it without int8.")
        return super().train(mode)

    @property
    def stacks(self) -> list[Stack]:
        """The encoder, the decoder, or both."""
        return [stack for stack in (self.encoder, self.decoder) if stack is not None]

    @property
    def stack(self) -> Stack:
        """The stack whose output is the input of the heads."""
        return self.stacks[-1]

    def token_embeddings(self, stack: Stack) -> nn.Embedding:
        """Return the token embeddings of one of the stacks."""
        own = self.encoder_tokens if stack is self.encoder else None
        return self.tokens if own is None else own

    def forward(
        self,
        tokens: Tensor,
        mask: Mask,
        *,
        memory: Tensor | None = None,
        memory_mask: Mask | None = None,
        cache: KVCache | None = None,
        **inputs: Any,
    ) -> Tensor:
        """Compute hidden states, the input of the heads: token ids (N,) -> (N, W).

        In an encoder-decoder the tokens are the decoder's and `memory` is the output of `encode`.
        Other inputs are those of `Stack`: segments, layers, recorder and output_layer.
        """
        if memory_mask is None and cache is not None:
            memory_mask = cache.memory
        prompt = self.encoder.prompt if self.encoder is not None else None
        if memory_mask is not None and prompt is not None:
            memory_mask, order = memory_mask.prepend(len(prompt()))
            memory = memory[order] if memory is not None else None
        inputs |= dict(memory=memory, memory_mask=memory_mask, cache=cache)
        hidden = self._run_stack(self.stack, tokens, mask, **inputs)
        return hidden if len(hidden) == len(tokens) else hidden[: len(tokens)]

    def encode(self, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Compute the hidden states of an input: of the encoder, if there is one.

        With a trained prompt (prompt tuning) its outputs follow those of all tokens.
        """  # (M,) -> (M, R)
        return self._run_stack(self.stacks[0], tokens, mask, **inputs)

    def _run_stack(self, stack: Stack, tokens: Tensor, mask: Mask, **inputs: Any) -> Tensor:
        """Run a stack; the outputs of a trained prompt follow those of all tokens."""
        x, cache = self.token_embeddings(stack)(tokens), inputs.get("cache")  # (N, E)
        if stack.prompt is None or (cache is not None and cache.used):
            return stack(x, mask, **inputs)
        prompt = stack.prompt()  # (prompt length, E)
        longer, order = mask.prepend(len(prompt))
        x = torch.cat([x, prompt.to(x.dtype).repeat(len(mask), 1)])[order]
        if (segments := inputs.get("segments")) is not None:
            inputs["segments"] = pad(segments, (0, len(x) - len(segments)))[order]
        if cache is not None:
            cache.extend(len(prompt))
        hidden, inverse = stack(x, longer, **inputs), order.argsort()
        if (layers := inputs.get("layers")) is not None:
            layers[:] = [layer[inverse[: len(tokens)]] for layer in layers]
        return hidden[inverse]


def max_text_length(model: ScoringModel | HiddenStateModel) -> int:
    """Return the maximum number of tokens of a text, less active prompts and prefixes.

    >>> from firth.models.presets import preset
    >>> max_text_length(Transformer(preset("bert-tiny").config))
    512
    """
    return min(_max_lengths(model))


def max_input_length(model: ScoringModel | HiddenStateModel) -> int:
    """Return the same for the input of a model: of the encoder, if there is one."""
    return _max_lengths(model)[0]


def max_output_length(model: ScoringModel | HiddenStateModel) -> int:
    """Return the same for the stack that predicts: the decoder, if there is one."""
    return _max_lengths(model)[-1]


def _max_lengths(model: ScoringModel | HiddenStateModel) -> list[int]:
    if isinstance(model, Transformer):
        return [stack.max_length for stack in model.stacks]
    return [model.config.max_positions]


def count_parameters(network: nn.Module) -> int:
    """Count the parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in network.parameters())
