"""Prompt tuning (Lester et al. 2021) and prefix tuning (Li & Liang 2021).

Prompt tuning trains embeddings before the input; prefix tuning trains keys and values in every
layer. Both are initialized from tokens, random or given, so a causal network first computes what it
computes with these tokens before the text. They take positions from it: see `Stack.max_length`.

P  virtual tokens     E  embedding size     L  layers     K  key-value heads     D  head size
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from firth.adapt.injection import InjectedModule, InjectionPoint, new_parameter, parameter_generator
from firth.models.kv_cache import KeyValuePrefix, KeyValues, KVCache
from firth.models.masks import Mask
from firth.models.stack import Stack
from firth.models.transformer import Transformer
from firth.models.transformer_config import TransformerConfig
from firth.utils.errors import UsageError

WHERE = ("encoder", "decoder", "cross")


@dataclass(frozen=True, kw_only=True)
class PromptTuningConfig:
    """Options of prompt tuning."""

    length: int = 20  # number of virtual tokens
    tokens: tuple[int, ...] = ()  # token ids they are initialized from, repeated; (): random ones


@dataclass(frozen=True, kw_only=True)
class PrefixTuningConfig:
    """Options of prefix tuning."""

    length: int = 20  # number of virtual tokens
    where: tuple[str, ...] = ()  # encoder, decoder, cross (attention); (): all there are
    projection: int = 0  # hidden size of an MLP that computes them during training; 0: none
    tokens: tuple[int, ...] = ()  # token ids they are initialized from; (): random ones


class StackedPrompts(InjectionPoint):
    """All prompts of a stack, concatenated."""

    def forward(self) -> Tensor:
        """Return the embeddings of all active prompts, (P, E)."""
        prompts: list[Any] = list(self.values())
        active = [prompt.vectors for prompt in self.active()]
        return torch.cat(active or [prompts[0].vectors[:0]])


class PromptEmbedding(InjectedModule):
    """The trainable embeddings of a prompt."""

    slot: ClassVar[str] = "prompt"
    point: ClassVar[type[InjectionPoint]] = StackedPrompts

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = new_parameter(vectors, vectors)  # (P, E)


class StackedPrefixes(InjectionPoint):
    """All prefixes of a stack, concatenated."""

    def forward(self) -> KeyValuePrefix:
        prefixes = list(self.active())
        return KeyValuePrefix(
            own=_layers([prefix.own for prefix in prefixes]),
            cross=_layers([prefix.cross for prefix in prefixes]),
        )


class PrefixKeyValues(InjectedModule):
    """The trainable keys and values of self-attention (`own`) and cross-attention (`cross`)."""

    slot: ClassVar[str] = "prefix"
    point: ClassVar[type[InjectionPoint]] = StackedPrefixes

    def __init__(self, own: PrefixEncoder | None, cross: PrefixEncoder | None) -> None:
        super().__init__()
        self.own, self.cross = own, cross


class PrefixEncoder(nn.Module):
    """Keys and values for each layer; with a projection, computed by an MLP during training."""

    def __init__(self, states: Tensor, projection: int, name: str, seed: int) -> None:
        super().__init__()
        self.shape = states.shape[1:]  # of (P, L, 2, K, D)
        self.maker = None
        if projection:
            self.maker = nn.Sequential(
                nn.utils.skip_init(nn.Linear, projection, projection),
                nn.Tanh(),
                nn.utils.skip_init(nn.Linear, projection, states[0].numel()),
            ).to(new_parameter(states, states))
            for key, weight in self.maker.named_parameters():
                bound, generator = projection**-0.5, parameter_generator(f"{name}.{key}", seed)
                initial = torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)
                weight.data.copy_(initial)
            states = torch.randn(
                len(states), projection, generator=parameter_generator(name, seed)
            ).to(states)
        self.states = new_parameter(states, states)

    def forward(self) -> Tensor:
        """Return the keys and values of all layers, (P, L, 2, K, D)."""
        if self.maker is None:
            return self.states
        return self.maker(self.states).unflatten(1, self.shape)

    def fold(self) -> None:
        """Replace the MLP by its output."""
        self.states, self.maker = nn.Parameter(self().detach()), None


def _layers(prefixes: list[PrefixEncoder | None]) -> list[KeyValues]:
    """Concatenate prefixes and return the keys and values of each layer."""
    states = [prefix() for prefix in prefixes if prefix is not None]
    if not states:
        return []
    return [(pair[:, 0], pair[:, 1]) for pair in torch.cat(states).unbind(1)]


def prompt(
    network: Transformer, options: PromptTuningConfig, seed: int
) -> dict[str, InjectedModule]:
    """Create a prompt for the encoder, or for the decoder of a decoder-only network."""
    _check_length(network.config.input_config, options.length, "prompt")
    side, stack = next(iter(_stacks(network).items()))
    ids = _first_tokens(network.token_embeddings(stack), options.length, options.tokens, seed)
    return {side: PromptEmbedding(network.token_embeddings(stack).weight.detach()[ids])}


def prefix(
    network: Transformer, options: PrefixTuningConfig, seed: int
) -> dict[str, InjectedModule]:
    """Create prefixes for the encoder, the decoder and cross-attention."""
    for stack in _stacks(network).values():
        _check_length(stack.config, options.length, "prefix")
    available = [side for side in WHERE if _has(network.config, side)]
    for side in options.where:
        if side not in available:
            raise UsageError(
                f"This network has no {side} for a prefix; it has {', '.join(available)}."
            )
    ids = {
        side: _first_tokens(network.token_embeddings(stack), options.length, options.tokens, seed)
        for side, stack in _stacks(network).items()
    }
    states = {
        side: PrefixEncoder(first, options.projection, f"prefix.{side}", seed)
        for side, first in _first_states(network, ids).items()
        if side in (options.where or available)
    }
    modules: dict[str, InjectedModule] = {}
    if "encoder" in states:
        modules["encoder"] = PrefixKeyValues(states["encoder"], None)
    if "decoder" in states or "cross" in states:
        modules["decoder"] = PrefixKeyValues(states.get("decoder"), states.get("cross"))
    return modules


def _stacks(network: Transformer) -> dict[str, Stack]:
    """Return the stacks of a network, the encoder first."""
    both = {"encoder": network.encoder, "decoder": network.decoder}
    return {side: stack for side, stack in both.items() if stack is not None}


def _has(config: TransformerConfig, side: str) -> bool:
    cross = config.has_encoder and config.has_decoder
    return {"encoder": config.has_encoder, "decoder": config.has_decoder, "cross": cross}[side]


def _check_length(config: TransformerConfig, length: int, what: str) -> None:
    if not 0 < length < config.max_positions:
        raise UsageError(
            f"A {what} of length {length} is not possible: the network has "
            f"{config.max_positions} positions, and the text needs some of them."
        )


def _first_tokens(table: nn.Embedding, length: int, given: tuple[int, ...], seed: int) -> Tensor:
    """Return the token ids that virtual tokens are initialized from, (P,)."""
    vocab_size = table.num_embeddings
    if any(not 0 <= token < vocab_size for token in given):
        raise UsageError(f"Token ids of this network are 0 to {vocab_size - 1}.")
    if given:
        ids = torch.tensor(given).repeat(length // len(given) + 1)[:length]
    else:
        ids = torch.randint(vocab_size, (length,), generator=parameter_generator("prompt", seed))
    return ids.to(table.weight.device)


@torch.no_grad()
def _first_states(network: Transformer, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Compute the keys and values of all layers for some tokens, each (P, L, 2, K, D)."""
    first = next(iter(ids.values()))
    mask = Mask([len(first)], device=first.device)
    states, memory = {}, None
    training = network.training
    network.eval()  # without dropout
    if network.encoder is not None:
        x = network.token_embeddings(network.encoder)(ids["encoder"])
        cache, memory = _run(network.encoder, x, mask)
        states["encoder"] = _stacked([(slot.keys[0], slot.values[0]) for slot in cache.layers])
    if network.decoder is not None:
        x = network.tokens(ids["decoder"])
        cross = dict(memory=memory, memory_mask=mask) if memory is not None else {}
        causal = Mask.causal([len(x)], device=x.device)
        cache, _ = _run(network.decoder, x, causal, **cross)
        states["decoder"] = _stacked([(slot.keys[0], slot.values[0]) for slot in cache.layers])
        if memory is not None:
            states["cross"] = _stacked([slot.memory for slot in cache.layers])
    network.train(training)
    return states


def _run(stack: Stack, x: Tensor, mask: Mask, **cross: Any) -> tuple[KVCache, Tensor]:
    """Run an encoder or decoder with a key/value cache; return the cache and the output."""
    config = replace(
        stack.config,
        architecture="decoder",
        encoder=None,
        num_layers=stack.layers,
        num_decoder_layers=0,
        share_encoder_decoder=False,
        windowed_layers=(),
    )
    cache = KVCache.empty(config, 1, len(x), device=x.device, dtype=x.dtype)
    return cache, stack(x, mask, cache=cache, **cross)


def _stacked(pairs: list[Any]) -> Tensor:
    """Stack the keys and values of each layer, L pairs of (P, K, D), to (P, L, 2, K, D)."""
    return torch.stack([torch.stack(pair, dim=1) for pair in pairs], dim=1)
