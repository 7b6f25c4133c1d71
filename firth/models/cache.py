"""Keys and values of tokens already seen, in tensors whose shapes never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
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

    pairs: Tensor  # (B, T, 2, K, D) a key and a value of each
    memory: tuple[Tensor, Tensor] | None = None  # keys and values of the encoder's output

    @property
    def keys(self) -> Tensor:
        return self.pairs[:, :, 0]  # (B, T, K, D)

    @property
    def values(self) -> Tensor:
        return self.pairs[:, :, 1]  # (B, T, K, D)


@dataclass
class Step:
    """Where the new tokens of a step go in one slot."""

    slot: Slot
    places: Tensor  # (N,) where each stands in the slot's rows, end to end
    fresh: bool  # nothing was kept before

    def keep(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keep new keys and values (N, K, D), and give all that the step may look at."""
        slot, pairs = self.slot, torch.stack((k.detach(), v.detach()), dim=1)  # (N, 2, K, D)
        slot.pairs.flatten(0, 1).index_copy_(0, self.places, pairs.to(slot.pairs.dtype))
        return (k, v) if self.fresh else (slot.keys, slot.values)


@dataclass
class Cache:
    """What a decoder keeps between its steps.

    The shapes are fixed when it is made, so that one compiled step serves a whole generation; only
    what is learned to stand before every sequence makes it longer, before the first step.
    """

    kept: Tensor  # (layers, B, T, 2, K, D) keys and values, of which `slots` are views
    lengths: Tensor  # (B,) tokens kept of each sequence
    slots: list[Slot] = field(default_factory=list)
    used: int = 0  # no sequence has more; 0: nothing is kept yet
    memory: Mask | None = field(default=None)  # the encoder's stream
    stride: int = 1  # a step looks at a multiple of so many places
    shares: int = 1  # so many sequences, side by side, have one source: beams, drawn samples
    _together: tuple[Mask, Mask] | None = None  # the last step, and the same by source

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
        shape = (layers, batch, context, 2, config.kv_heads, config.head_width)
        kept = torch.zeros(shape, device=device, dtype=dtype)
        return cls(kept, torch.zeros(batch, dtype=torch.long, device=device))

    def __post_init__(self) -> None:
        self.slots = self.slots or [Slot(pairs) for pairs in self.kept]

    def _hold(self, kept: Tensor) -> None:
        """Go on with other keys and values."""
        self.kept = kept
        for slot, pairs in zip(self.slots, kept, strict=True):
            slot.pairs = pairs

    @property
    def room(self) -> int:
        """How many tokens of a sequence can be kept."""
        return self.kept.shape[2]

    def looked_at(self, more: int) -> int:
        """How many places of each sequence a step of so many tokens looks at."""
        return min(-(-(self.used + more) // self.stride) * self.stride, self.room)

    def widen(self, more: int) -> None:
        """Make room for so many more tokens of each sequence."""
        self._hold(pad(self.kept, (0, 0, 0, 0, 0, 0, 0, more)))

    def begin(self, prefix: Prefix) -> None:
        """Let learned keys and values be the first tokens of every sequence."""
        self.widen(prefix.length)
        for slot, (keys, values) in zip(self.slots, prefix.own, strict=True):
            slot.keys[:, : prefix.length] = keys.detach().to(slot.keys.dtype)
            slot.values[:, : prefix.length] = values.detach().to(slot.values.dtype)
        self.lengths += prefix.length
        self.used += prefix.length

    def steps(self, mask: Mask, places: Tensor) -> list[Step]:
        """Where the tokens of a step go, layer by layer."""
        where = mask.owners * self.room + places
        return [Step(slot, where, fresh=not self.used) for slot in self.slots]

    def spread(self, count: int) -> None:
        """Let each sequence go on in so many ways, side by side."""
        self._hold(self.kept.repeat_interleave(count, 1))
        self.lengths = self.lengths.repeat_interleave(count)
        self.shares *= count

    def by_source(self, mask: Mask) -> Mask:
        """The tokens of a step, put together where they look at the same source."""
        if self.shares == 1:
            return mask
        if self._together is None or self._together[0] is not mask:
            lengths = mask.lengths.reshape(-1, self.shares).sum(1)
            self._together = mask, Mask(lengths, device=mask.device)
        return self._together[1]

    def select(self, rows: Tensor, since: int = 0) -> None:
        """Keep these sequences, in this order (a beam search moves among them).

        What stands before the place `since` is known to be the same and stays. Behind an encoder,
        a sequence moves only among those of its source, so what is kept of that stays too.
        """
        moved = _wide(self.kept)[:, :, since : self.used]
        # A GPU does all layers at once: asking for each would take longer than copying it.
        for part in [moved] if moved.is_cuda else moved:
            part.copy_(part.index_select(-3, rows))
        self.lengths.copy_(self.lengths[rows])

    def keep(self, sources: Sequence[int]) -> None:
        """Go on with the sequences of these sources alone."""
        first = torch.tensor(sources, device=self.lengths.device) * self.shares
        rows = (first[:, None] + torch.arange(self.shares, device=first.device)).flatten()
        self._hold(self.kept[:, rows])
        self.lengths = self.lengths[rows]
        if self.memory is None:
            return
        lengths = self.memory.lengths
        for slot in self.slots:
            if slot.memory is not None:
                # What is learned to stand before a source is kept with it.
                longer = lengths + (len(slot.memory[0]) - lengths.sum()) // len(lengths)
                begins = np.cumsum(longer) - longer
                places = np.concatenate([begins[i] + np.arange(longer[i]) for i in sources])
                chosen = torch.from_numpy(places).to(rows.device)
                slot.memory = slot.memory[0][chosen], slot.memory[1][chosen]
        self.memory = Mask(lengths[list(sources)], device=self.memory.device)

    def advance(self, mask: Mask) -> None:
        """Count the tokens of a step as kept."""
        self.lengths += mask.sizes
        self.used += mask.longest


def _wide(kept: Tensor) -> Tensor:
    """The same memory in numbers of 16 bytes, of which a GPU copies many more at a time."""
    each = kept.flatten(-3)  # (layers, B, T, 2 K D)
    return each.view(torch.complex128) if each.shape[-1] * each.itemsize % 16 == 0 else each
