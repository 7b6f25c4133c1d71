"""Sequences that join and leave a running batch: their caches or states, and next-token logits.

    B  sequences in the batch     V  vocabulary     T  cache positions of a sequence

The sequences are rows 0 to B - 1; new ones are appended, and the last one takes the place of one
that leaves. A Transformer's rows are the first of a key/value cache with room for more, so neither
joining nor leaving moves the others, and one decoder in C serves all batches of up to 16, or one of
Triton kernels all batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from firth.inference.generation.decode_state import (
    CACHE_STRIDE,
    DecodeState,
    Prompts,
    prefill,
    start_decoding,
)
from firth.inference.generation.generation_config import GenerationConfig
from firth.models.attention import next_power_of_two
from firth.models.gpu_decoder import GpuDecoder, make_gpu_decoder
from firth.models.kv_cache import KVCache
from firth.models.language_model import ScoringModel
from firth.models.masks import Mask
from firth.models.transformer import Transformer
from firth.quantization.c_decoder import MAX_SEQUENCES, CDecoder, make_c_decoder

MIN_CAPACITY = 64  # cache positions of a sequence, so that a cache is seldom allocated anew


class DecodeSlots(Protocol):
    """Sequences being decoded, and the logits of the token after each."""

    @property
    def logits(self) -> Tensor:
        """The logits of each sequence's next token."""  # (B, V)

    def add(self, prompts: Prompts, limits: Sequence[int]) -> None:
        """Run prompts in one pass and append them as rows; `limits`: tokens that follow each."""

    def remove(self, row: int, *, clear: bool = False) -> None:
        """Drop a sequence; the last one takes its row. `clear`: its states are NaN or infinite."""

    def advance(self, tokens: Tensor) -> None:
        """Append one token to each sequence, and compute the next logits."""  # (B,)


def make_slots(network: ScoringModel, max_sequences: int, max_tokens: int) -> DecodeSlots:
    """Make the fastest slots for a model; `max_tokens`: of all rows at the length of the longest.

    >>> from firth.models.ngram.config import NgramConfig
    >>> from firth.models.ngram.model import NgramModel
    >>> slots = make_slots(NgramModel(NgramConfig(order=2, vocab_size=5)), 4, 100)
    >>> slots.add([[3], [1, 2]], limits=[8, 8])
    >>> slots.logits.shape
    torch.Size([2, 5])
    """
    if isinstance(network, Transformer):
        return CacheSlots(network, max_sequences, max_tokens)
    return StateSlots(network)


class StateSlots:
    """Sequences of a recurrent or count-based model."""

    def __init__(self, model: ScoringModel) -> None:
        self.model = model
        self.state: DecodeState | None = None

    @property
    def logits(self) -> Tensor:
        assert self.state is not None
        return self.state.logits

    def add(self, prompts: Prompts, limits: Sequence[int]) -> None:
        added = start_decoding(self.model, prompts, GenerationConfig(), limits)
        if self.state is None:
            self.state = added
        else:
            self.state.join(added)

    def remove(self, row: int, *, clear: bool = False) -> None:
        assert self.state is not None
        rows = [*range(len(self.state.logits))]
        rows[row] = rows[-1]
        if rows := rows[:-1]:
            self.state.keep_prompts(rows)
        else:
            self.state = None

    def advance(self, tokens: Tensor) -> None:
        assert self.state is not None
        self.state.advance(tokens, torch.zeros_like(tokens))


class CacheSlots:
    """Sequences of a Transformer, in the rows of a key/value cache."""

    def __init__(self, network: Transformer, max_sequences: int, max_tokens: int) -> None:
        self.network, self.max_sequences, self.max_tokens = network, max_sequences, max_tokens
        self.capacities: list[int] = []  # of each row: its cache positions at the end
        self.cache = self._empty_cache(0, 0)
        self.rows = self.cache  # the part of the cache that is in use
        self.decoder: CDecoder | GpuDecoder | None = None
        self._logits = torch.empty(0, network.config.vocab_size, device=network.device)

    @property
    def logits(self) -> Tensor:
        return self._logits[: len(self.capacities)]

    def add(self, prompts: Prompts, limits: Sequence[int]) -> None:
        unique = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        new, hidden = prefill(self.network, unique, [0] * len(unique))
        new_logits, lengths = self.network.logits(hidden).float(), new.lengths.tolist()
        sources = [unique.index(tuple(prompt)) for prompt in prompts]
        first = len(self.capacities)
        self.capacities += [lengths[i] + limit for i, limit in zip(sources, limits, strict=True)]
        self._reserve(new_logits.shape[1])
        for row, source in enumerate(sources, start=first):
            length = lengths[source]
            self.cache.keys_values[:, row, :length] = new.keys_values[:, source, :length]
            self.cache.lengths[row] = length
            self._logits[row] = new_logits[source]
        new.keep_memory(sources)
        self.cache.append_memory(new)
        self.rows = self.cache.first(len(self.capacities))

    def remove(self, row: int, *, clear: bool = False) -> None:
        last = len(self.capacities) - 1
        if clear:  # masked positions of the next sequence are multiplied by 0, which keeps NaN
            self.cache.keys_values[:, row] = 0
        if row < last:
            length = int(self.cache.lengths[last])
            self.cache.keys_values[:, row, :length] = self.cache.keys_values[:, last, :length]
            self.cache.lengths[row] = length
            self._logits[row] = self._logits[last]
            self.capacities[row] = self.capacities[last]
        kept = [*range(last)]
        if row < last:
            kept[row] = last
        self.cache.keep_memory(kept)
        self.capacities.pop()
        self.rows = self.cache.first(last)

    def advance(self, tokens: Tensor) -> None:
        mask = Mask.causal([1] * len(tokens), device=tokens.device)
        if self.decoder is not None and len(tokens) <= self.decoder.max_sequences:
            self.decoder.step(tokens, self.cache, self._logits)
            self.rows.advance(mask)
            return
        hidden = self.network(tokens, mask, cache=self.rows)
        self.logits.copy_(self.network.logits(hidden))

    def _reserve(self, vocab_size: int) -> None:
        """Make room for all rows: allocate a larger cache if this one is too small."""
        count, longest = len(self.capacities), max(self.capacities)
        slots = len(self.cache.lengths)
        if count <= slots and longest <= self.cache.capacity:
            return
        old, capacity = self.cache, max(MIN_CAPACITY, next_power_of_two(longest))
        if count * capacity > self.max_tokens:
            stride = CACHE_STRIDE.get(self.network.device.type, 1)
            capacity = -(-longest // stride) * stride
        slots = max(count, min(self.max_sequences, self.max_tokens // capacity))
        self.cache = self._empty_cache(slots, capacity)
        used = min(old.capacity, capacity)
        kept = min(len(old.lengths), count)
        self.cache.keys_values[:, :kept, :used] = old.keys_values[:, :kept, :used]
        self.cache.lengths[:kept] = old.lengths[:kept]
        self.cache.append_memory(old)
        logits = self._logits.new_empty(slots, vocab_size)
        logits[:kept] = self._logits[:kept]
        self._logits = logits
        self.decoder = make_c_decoder(
            self.network, self.cache, min(slots, MAX_SEQUENCES)
        ) or make_gpu_decoder(self.network, self.cache)

    def _empty_cache(self, slots: int, capacity: int) -> KVCache:
        device, dtype = self.network.device, self.network.dtype
        cache = KVCache.empty(self.network.config, slots, capacity, device=device, dtype=dtype)
        cache.stride = CACHE_STRIDE.get(device.type, 1)
        return cache
