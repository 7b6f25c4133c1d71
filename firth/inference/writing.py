"""Texts that grow, token by token: what a network keeps of them and says comes next.

    S  prompts     B  texts, several of one prompt side by side     V  vocabulary

A step is one call of the network with one token for each text. On a GPU all its tensors stay where
they are for many steps, until more places must be looked at or texts that have ended are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from firth.inference.filters import NOTHING
from firth.inference.replay import Replayed, Work
from firth.inference.settings import Generation
from firth.models.cache import Cache
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.native.decoder import Choice, native

# Where steps are replayed, they look at a multiple of so many places: many have the same shapes.
STRIDE = {"cuda": 128}

Prompts = Sequence[Sequence[int]]


class Writer:
    """Several texts that are being written behind each of some prompts."""

    def __init__(
        self, network: Transformer, prompts: Prompts, settings: Generation, room: Sequence[int]
    ) -> None:
        """`room`: new tokens of each."""
        self.network, ways = network, settings.ways
        self.cache, hidden = _begin(network, prompts, room)
        self.shared = int(self.cache.lengths.min())  # places that all texts of a prompt share
        self.logits = network.logits(hidden).float().repeat_interleave(ways, 0)  # (B, V)
        if ways > 1:
            self.cache.spread(ways)
        self.history = _history(network, prompts, ways) if settings.remembers else None  # (B, T)
        self._prepare()

    def _prepare(self) -> None:
        """Make ready for steps of as many texts as there are now."""
        device, texts = self.logits.device, len(self.logits)
        self._mask = Mask.causal([1] * texts, device=device)
        self._tokens = torch.zeros(texts, dtype=torch.long, device=device)
        self._ended = torch.zeros(texts, dtype=torch.long, device=device)
        self._step = Replayed(device)
        self._native = native(self.network, self.cache)

    def write(self, tokens: Tensor, ended: Tensor) -> None:
        """Write one more token of each text, and see what comes next; not of those that ended."""
        if self.history is not None:
            self.history = torch.cat([self.history, tokens[:, None]], dim=1)
        self.note(tokens, ended)
        self.replay(self._step, self.see)

    def note(self, tokens: Tensor, ended: Tensor) -> None:
        """Let these be the tokens that are seen next."""
        self._tokens.copy_(tokens)
        self._ended.copy_(ended)

    def see(self) -> None:
        """Let the network see the tokens that were noted; what comes next is in `logits`."""
        # What has ended and is still held writes over its last place: it may have no other.
        self.cache.lengths -= self._ended
        if self._native is not None:
            self._native.step(self._tokens, self.cache, self.logits)
            self.cache.advance(self._mask)
            return
        hidden = self.network(self._tokens, self._mask, cache=self.cache)
        self.logits.copy_(self.network.logits(hidden))

    def choose(self, choice: Choice, most: int) -> int:
        """Let the likeliest tokens be the next, up to so many; all but the last are seen.

        Gives how many there were: none where that is left to others.
        """
        if self._native is None:
            return 0
        count = self._native.write(self._tokens, self.cache, self.logits, choice, most)
        self.cache.used += count - 1
        return count

    def replay(self, step: Replayed, work: Work) -> None:
        """Do work that sees one more token of each text."""
        used = self.cache.used
        step(work, self.cache.looked_at(1))
        self.cache.used = used + 1  # also where it was only told to do it again

    def move(self, rows: Tensor) -> None:
        """Go on with these texts, in this order; each stays with its prompt."""  # (B,)
        self.cache.select(rows, since=self.shared)
        if self.history is not None:
            self.history = self.history[rows]

    def keep(self, prompts: Sequence[int]) -> None:
        """Go on with the texts of these prompts alone."""
        ways, device = self.cache.shares, self.logits.device
        rows = torch.tensor([i * ways + j for i in prompts for j in range(ways)], device=device)
        self.cache.keep(prompts)
        self.logits = self.logits[rows]
        if self.history is not None:
            self.history = self.history[rows]
        self._prepare()


def _begin(network: Transformer, prompts: Prompts, room: Sequence[int]) -> tuple[Cache, Tensor]:
    """Read all prompts at once; what is kept, and what the head sees of each."""  # (S, W)
    device = network.tokens.weight.device
    tokens = torch.tensor([id for prompt in prompts for id in prompt], device=device)
    lengths = [len(prompt) for prompt in prompts]
    behind = network.config.has_encoder
    taken = [1] * len(prompts) if behind else lengths
    places, stride = max(map(sum, zip(taken, room, strict=True))), STRIDE.get(device.type, 1)
    size: Any = {"device": device, "dtype": network.tokens.weight.dtype}
    cache = Cache.empty(network.config, len(prompts), -(-places // stride) * stride, **size)
    cache.stride = stride
    if behind:
        cache.memory = Mask(lengths, device=device)
        memory = network.encode(tokens, cache.memory)
        start = torch.full((len(prompts),), network.config.start_id or 0, device=device)
        mask = Mask.causal(taken, device=device)
        return cache, network(start, mask, memory=memory, cache=cache)
    hidden = network(tokens, Mask.causal(lengths, device=device), cache=cache)
    return cache, hidden[torch.tensor(lengths, device=device).cumsum(0) - 1]


def _history(network: Transformer, prompts: Prompts, ways: int) -> Tensor:
    """All tokens of each text so far, padded on the left: what the decoder has been given."""
    if network.config.has_encoder:
        prompts = [[network.config.start_id or 0]] * len(prompts)
    rows = [torch.tensor(prompt) for prompt in prompts]
    padded = pad_sequence(rows, batch_first=True, padding_value=NOTHING, padding_side="left")
    return padded.to(network.tokens.weight.device).repeat_interleave(ways, 0)
