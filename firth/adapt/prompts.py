"""Something learned that stands before every text: vectors, or the keys and values of all layers.

Prompt tuning (Lester et al. 2021) learns vectors in place of tokens. Prefix tuning (Li & Liang
2021) learns what each layer's attention sees of such tokens. Both begin with words of the
vocabulary, drawn at random or given: there a network of one direction computes what it computes
when these words stand before the text. They take places from the text: see `room`.

P  learned places     E  width of the table     K  key-value heads     D  width of a head
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from firth.adapt.changes import Change, Place, draws, parameter
from firth.errors import Misuse
from firth.models.cache import Cache, Past, Prefix
from firth.models.config import ModelConfig
from firth.models.masks import Mask
from firth.models.stack import Stack
from firth.models.transformer import Transformer

WHERE = ("encoder", "decoder", "cross")


@dataclass(frozen=True, kw_only=True)
class PromptTuning:
    """What is learned before the text that is read."""

    length: int = 20  # how many vectors
    tokens: tuple[int, ...] = ()  # whose vectors they are at first, again and again; (): drawn


@dataclass(frozen=True, kw_only=True)
class PrefixTuning:
    """What every layer sees before the text."""

    length: int = 20  # how many keys and values
    where: tuple[str, ...] = ()  # encoder, decoder, cross attention; (): all there are
    projection: int = 0  # width of a layer that makes them while they learn; 0: none
    tokens: tuple[int, ...] = ()  # whose keys and values they are at first; (): drawn


class Prompts(Place):
    """All prompts of a stack, one behind the other."""

    def forward(self) -> Tensor:
        """(P, E), P of all that count."""
        changes: list[Any] = list(self.values())
        shown = [change.vectors for change in self.active()]
        return torch.cat(shown or [changes[0].vectors[:0]])


class Vectors(Change):
    """The vectors of a prompt."""

    slot: ClassVar[str] = "prompt"
    place: ClassVar[type[Place]] = Prompts

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = parameter(vectors, vectors)  # (P, E)


class Prefixes(Place):
    """All prefixes of a stack, one behind the other."""

    def forward(self) -> Prefix:
        changes = list(self.active())
        return Prefix(
            own=_layers([change.own for change in changes]),
            cross=_layers([change.cross for change in changes]),
        )


class Pasts(Change):
    """The keys and values before a stack's own sequences, and before those of its encoder."""

    slot: ClassVar[str] = "prefix"
    place: ClassVar[type[Place]] = Prefixes

    def __init__(self, own: States | None, cross: States | None) -> None:
        super().__init__()
        self.own, self.cross = own, cross


class States(nn.Module):
    """Keys and values for each of L layers; or, while they learn, what they are made of."""

    def __init__(self, states: Tensor, projection: int, name: str, seed: int) -> None:
        super().__init__()
        self.shape = states.shape[1:]  # of (P, L, 2, K, D)
        self.maker = None
        if projection:
            self.maker = nn.Sequential(
                nn.utils.skip_init(nn.Linear, projection, projection),
                nn.Tanh(),
                nn.utils.skip_init(nn.Linear, projection, states[0].numel()),
            ).to(parameter(states, states))
            for key, weight in self.maker.named_parameters():
                bound, generator = projection**-0.5, draws(f"{name}.{key}", seed)
                drawn = torch.empty(weight.shape).uniform_(-bound, bound, generator=generator)
                weight.data.copy_(drawn)
            states = torch.randn(len(states), projection, generator=draws(name, seed)).to(states)
        self.states = parameter(states, states)

    def forward(self) -> Tensor:
        """(P, L, 2, K, D)"""
        if self.maker is None:
            return self.states
        return self.maker(self.states).unflatten(1, self.shape)

    def fold(self) -> None:
        """Keep what is made, and forget how."""
        self.states, self.maker = nn.Parameter(self().detach()), None


def _layers(found: list[States | None]) -> list[Past]:
    """What each layer sees of several prefixes."""
    states = [one() for one in found if one is not None]
    if not states:
        return []
    return [(pair[:, 0], pair[:, 1]) for pair in torch.cat(states).unbind(1)]


def prompt(network: Transformer, options: PromptTuning, seed: int) -> dict[str, Change]:
    """Vectors before what the encoder reads, or a lone decoder."""
    _check_length(network.config.reading, options.length, "prompt")
    side, stack = next(iter(_stacks(network).items()))
    ids = _first_tokens(network.table(stack), options.length, options.tokens, seed)
    return {side: Vectors(network.table(stack).weight.detach()[ids])}


def prefix(network: Transformer, options: PrefixTuning, seed: int) -> dict[str, Change]:
    """Keys and values before the sequences of each stack."""
    for stack in _stacks(network).values():
        _check_length(stack.config, options.length, "prefix")
    there = [side for side in WHERE if _has(network.config, side)]
    for side in options.where:
        if side not in there:
            raise Misuse(
                f"This network has no {side} that a prefix could stand in; it has "
                f"{', '.join(there)}."
            )
    ids = {
        side: _first_tokens(network.table(stack), options.length, options.tokens, seed)
        for side, stack in _stacks(network).items()
    }
    states = {
        side: States(first, options.projection, f"prefix.{side}", seed)
        for side, first in _first_states(network, ids).items()
        if side in (options.where or there)
    }
    made: dict[str, Change] = {}
    if "encoder" in states:
        made["encoder"] = Pasts(states["encoder"], None)
    if "decoder" in states or "cross" in states:
        made["decoder"] = Pasts(states.get("decoder"), states.get("cross"))
    return made


def room(network: Transformer) -> int:
    """How many tokens a text may have, with what is learned to stand before it.

    >>> from firth.adapt.adapted import apply
    >>> from firth.models.presets import preset
    >>> network = Transformer(preset("bert-tiny").config)
    >>> room(network)
    512
    >>> _ = apply(network, "prefix:length=12")
    >>> room(network)
    500
    """
    return min(room_in(stack) for stack in _stacks(network).values())


def reading_room(network: Transformer) -> int:
    """The same for what is only read: by the encoder where there is one."""
    return room_in(next(iter(_stacks(network).values())))


def room_in(stack: Stack) -> int:
    """The same for what one stack is given."""
    prompts = len(stack.prompt()) if stack.prompt is not None else 0
    prefixes = stack.prefix().length if stack.prefix is not None else 0
    return stack.config.context - prompts - prefixes


def _stacks(network: Transformer) -> dict[str, Stack]:
    """What a network has, the encoder first."""
    both = {"encoder": network.encoder, "decoder": network.decoder}
    return {side: stack for side, stack in both.items() if stack is not None}


def _has(config: ModelConfig, side: str) -> bool:
    cross = config.has_encoder and config.has_decoder
    return {"encoder": config.has_encoder, "decoder": config.has_decoder, "cross": cross}[side]


def _check_length(config: ModelConfig, length: int, what: str) -> None:
    if not 0 < length < config.context:
        raise Misuse(
            f"A {what} of {length} leaves no room for a text: the network has "
            f"{config.context} places."
        )


def _first_tokens(table: nn.Embedding, length: int, given: tuple[int, ...], seed: int) -> Tensor:
    """The tokens that something learned begins as."""  # (P,)
    vocabulary = table.num_embeddings
    if any(not 0 <= token < vocabulary for token in given):
        raise Misuse(f"The network has only the tokens 0 to {vocabulary - 1}.")
    if given:
        ids = torch.tensor(given).repeat(length // len(given) + 1)[:length]
    else:
        ids = torch.randint(vocabulary, (length,), generator=draws("prompt", seed))
    return ids.to(table.weight.device)


@torch.no_grad()
def _first_states(network: Transformer, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The keys and values that each layer makes of some tokens."""  # each (P, L, 2, K, D)
    first = next(iter(ids.values()))
    mask = Mask([len(first)], device=first.device)
    states, memory = {}, None
    with _still(network):
        if network.encoder is not None:
            x = network.table(network.encoder)(ids["encoder"])
            kept, memory = _run(network.encoder, x, mask)
            states["encoder"] = _stacked([(slot.keys[0], slot.values[0]) for slot in kept.slots])
        if network.decoder is not None:
            x = network.tokens(ids["decoder"])
            behind = dict(memory=memory, memory_mask=mask) if memory is not None else {}
            causal = Mask.causal([len(x)], device=x.device)
            kept, _ = _run(network.decoder, x, causal, **behind)
            states["decoder"] = _stacked([(slot.keys[0], slot.values[0]) for slot in kept.slots])
            if memory is not None:
                states["cross"] = _stacked([slot.memory for slot in kept.slots])
    return states


def _run(stack: Stack, x: Tensor, mask: Mask, **behind: Any) -> tuple[Cache, Tensor]:
    """A stack that keeps its keys and values, also where it is an encoder."""
    config = replace(
        stack.config,
        architecture="decoder",
        reader=None,
        layers=stack.layers,
        decoder_layers=0,
        windowed=(),
    )
    cache = Cache.empty(config, 1, len(x), device=x.device, dtype=x.dtype)
    return cache, stack(x, mask, cache=cache, **behind)


def _stacked(pairs: list[Any]) -> Tensor:
    """Keys and values (P, K, D) of each layer, as one tensor."""  # (P, L, 2, K, D)
    return torch.stack([torch.stack(pair, dim=1) for pair in pairs], dim=1)


@contextmanager
def _still(network: Transformer) -> Iterator[None]:
    """Without dropout for a while."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
