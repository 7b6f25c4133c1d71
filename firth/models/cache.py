"""Keys and values of tokens already seen, in tensors whose shapes never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from firth.models.config import ModelConfig
from firth.models.masks import Mask

Past = tuple[Tensor, Tensor]  # (P, K, D) keys and values that stand before every sequence


@dataclass(frozen=True)
class Prefix:
    """What is learned to stand before every sequence, layer by layer (prefix tuning)."""

    own: Sequence[Past] = ()
    cross: Sequence[Past] = ()  # before the encoder's output

    @property
    def length(self) -> int:
        """How many places a sequence finds taken."""
        return len(self.own[0][0]) if self.own else 0


@dataclass
class Slot:
    """What one layer keeps: B sequences of at most T tokens."""

    keys: Tensor  # (B, T, K, D)
    values: Tensor  # (B, T, K, D)
    memory: tuple[Tensor, Tensor] | None = None  # keys and values of the encoder's output


@dataclass
class Step:
    """Where the new tokens of a step go in one slot."""

    slot: Slot
    owners: Tensor  # (N,) the row of each token
    places: Tensor  # (N,) its place in the row
    fresh: bool  # nothing was kept before

    def keep(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep new keys and values (N, K, D), and give all that the step may look at."""
        slot = self.slot
        slot.keys[self.owners, self.places] = k.to(slot.keys.dtype)
        slot.values[self.owners, self.places] = v.to(slot.values.dtype)
        return (k, v) if self.fresh else (slot.keys, slot.values)


@dataclass
class Cache:
    """What a decoder keeps between its steps.

    The shapes are fixed when it is made, so that one compiled step serves a whole generation; only
    what is learned to stand before every sequence makes it longer, before the first step.
    """

    slots: list[Slot]
    lengths: Tensor  # (B,) tokens kept of each sequence
    used: int = 0  # no sequence has more; 0: nothing is kept yet
    memory: Mask | None = field(default=None)  # the encoder's stream

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        batch: int,
        context: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Cache:
        """Room for so many sequences of so many tokens."""
        layers = config.decoder_layers or config.layers
        shape = (batch, context, config.kv_heads, config.head_width)

        def room() -> Tensor:
            return torch.zeros(shape, device=device, dtype=dtype)

        slots = [Slot(room(), room()) for _ in range(layers)]
        return cls(slots, torch.zeros(batch, dtype=torch.long, device=device))

    @property
    def room(self) -> int:
        """How many tokens of a sequence can be kept."""
        return self.slots[0].keys.shape[1]

    def widen(self, more: int) -> None:
        """Make room for so many more tokens of each sequence."""
        for slot in self.slots:
            slot.keys = pad(slot.keys, (0, 0, 0, 0, 0, more))
            slot.values = pad(slot.values, (0, 0, 0, 0, 0, more))

    def begin(self, prefix: Prefix) -> None:
        """Let learned keys and values be the first tokens of every sequence."""
        self.widen(prefix.length)
        for slot, (keys, values) in zip(self.slots, prefix.own, strict=True):
            slot.keys[:, : prefix.length] = keys.to(slot.keys.dtype)
            slot.values[:, : prefix.length] = values.to(slot.values.dtype)
        self.lengths += prefix.length
        self.used += prefix.length

    def steps(self, mask: Mask, places: Tensor) -> list[Step]:
        """Where the tokens of a step go, layer by layer."""
        return [Step(slot, mask.owners, places, fresh=not self.used) for slot in self.slots]

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order (a beam search moves among them).

        Behind an encoder they must be beams of one source: what is kept of it stays in place.
        """
        for slot in self.slots:
            slot.keys.copy_(slot.keys[rows])
            slot.values.copy_(slot.values[rows])
        self.lengths.copy_(self.lengths[rows])

    def advance(self, mask: Mask) -> None:
        """Count the tokens of a step as kept."""
        self.lengths += mask.starts.diff()
        self.used += mask.longest
