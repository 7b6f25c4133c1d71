"""Select the next token of sequences that each have their own options.

    B  sequences     V  vocabulary     k  largest top-k of the batch

A sequence gets the tokens that `sampling.py` selects for it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import (
    NEG_INF,
    ForcedTokens,
    keep_min_p,
    keep_top_p,
    penalize_repetition,
    sample_tokens,
)
from firth.inference.generation.sampling import SAMPLING_STREAM
from firth.inference.generation.sequence_request import SequenceRequest
from firth.utils.rng import Floats, derive_key, derive_keys, uniform


class ActiveSequence:
    """A sequence that is being generated."""

    def __init__(
        self, key: Hashable, request: SequenceRequest, context: Sequence[int], words: list[str]
    ) -> None:
        """`context`: what the decoder has read; `words`: those of the prompt it may copy."""
        self.key, self.request, self.words = key, request, words
        self.history = list(context)  # the decoder's input and the generated tokens
        self.count = 0  # of generated tokens

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.history.append(token)
        self.count += 1

    @cached_property
    def uniforms(self) -> Floats:
        """The random number of each step."""  # (limit,)
        request = self.request
        key = derive_key(derive_key(request.config.seed, request.prompt_index), request.index)
        return uniform(derive_keys(key, np.arange(request.limit)), SAMPLING_STREAM)

    @cached_property
    def bias(self) -> tuple[Tensor, Tensor]:
        """Token ids, and what is added to their logits."""
        bias = self.request.logit_bias
        return torch.tensor([*bias]), torch.tensor([*bias.values()], dtype=torch.float32)


def select_tokens(
    logits: Tensor, sequences: Sequence[ActiveSequence], forced: ForcedTokens
) -> Tensor:
    """Select the next token of each sequence."""  # (B, V) -> (B,)
    processed = _process(logits, sequences)
    if forced:
        position = torch.tensor([one.count for one in sequences], device=logits.device)
        limits = torch.tensor([one.request.limit for one in sequences], device=logits.device)
        processed = forced.apply(processed, position, limits)
    rows = [i for i, one in enumerate(sequences) if one.request.config.method == "sample"]
    if not rows:
        return processed.argmax(-1)
    sampled = [sequences[row] for row in rows]
    numbers = torch.tensor([one.uniforms[one.count] for one in sampled], device=logits.device)
    configs = [one.request.config for one in sampled]
    if len(rows) == len(sequences):
        return sample_tokens(filter_rows(processed, configs), numbers)
    tokens, indices = processed.argmax(-1), torch.tensor(rows, device=logits.device)
    tokens[indices] = sample_tokens(filter_rows(processed[indices], configs), numbers)
    return tokens


def _process(logits: Tensor, sequences: Sequence[ActiveSequence]) -> Tensor:
    """Add logit biases and penalize repetition in the sequences that ask for it."""  # (B, V)
    changed = logits
    for row, sequence in enumerate(sequences):
        config = sequence.request.config
        if not sequence.request.logit_bias and not config.needs_history:
            continue
        if changed is logits:
            changed = logits.clone()
        if sequence.request.logit_bias:
            ids, values = sequence.bias
            changed[row, ids.to(logits.device)] += values.to(logits.device)
        if config.needs_history:
            history = torch.tensor([sequence.history], device=logits.device)
            changed[row] = penalize_repetition(changed[row, None], history, config)[0]
    return changed


def filter_rows(logits: Tensor, configs: Sequence[GenerationConfig]) -> Tensor:
    """Apply the temperature, top-k, top-p and min-p of each row.

    >>> top_k = [GenerationConfig(method="sample", top_k=k) for k in (1, 2)]
    >>> filter_rows(torch.tensor([[1.0, 3.0, 2.0]] * 2), top_k).tolist()
    [[-inf, 3.0, -inf], [-inf, 3.0, 2.0]]
    """

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=logits.dtype, device=logits.device)[:, None]  # (B, 1)

    if any(config.temperature != 1.0 for config in configs):
        logits = logits / column([config.temperature for config in configs])
    if rows := [i for i, config in enumerate(configs) if config.top_k]:
        counts = [configs[i].top_k for i in rows]
        logits = _change_rows(logits, rows, lambda some: _keep_top_k(some, counts))
    if rows := [i for i, config in enumerate(configs) if config.top_p < 1.0]:
        masses = column([configs[i].top_p for i in rows])
        logits = _change_rows(logits, rows, lambda some: keep_top_p(some, masses))
    if any(config.min_p > 0.0 for config in configs):
        logits = keep_min_p(logits, column([config.min_p for config in configs]))
    return logits


def _change_rows(logits: Tensor, rows: Sequence[int], change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function of logits to some rows."""
    if len(rows) == len(logits):
        return change(logits)
    indices = torch.tensor(rows, device=logits.device)
    return logits.index_copy(0, indices, change(logits[indices]))


def _keep_top_k(logits: Tensor, counts: Sequence[int]) -> Tensor:
    """Keep the most probable tokens of each row, and those tied with the last of them."""
    last = torch.tensor(counts, device=logits.device).clamp(max=logits.shape[-1]) - 1
    highest = logits.topk(int(last.max()) + 1).values  # (B, k)
    return logits.masked_fill(logits < highest.gather(1, last[:, None]), NEG_INF)
