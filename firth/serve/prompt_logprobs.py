"""Log-probabilities of the tokens of prompts (`echo`), with the most probable alternatives.

N  tokens of a batch     V  vocabulary     K  alternatives
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from firth.inference.batching import batch_by_length, nan_error
from firth.inference.generation.sequence_request import TokenLogprob
from firth.inference.scoring.token_scoring import (
    MAX_LOGITS,
    MIN_POSITIONS,
    ScoringRequest,
    default_batch_tokens,
    hidden_states,
)
from firth.serve.served_model import ServedModel

Ids = tuple[int, ...]


@dataclass(frozen=True)
class PromptLogprobs:
    """The log-probability of each token given those before it; the first has none."""

    own: tuple[float | None, ...]
    top: tuple[tuple[TokenLogprob, ...], ...]


@torch.no_grad()
def prompt_logprobs(served: ServedModel, top: int, rows: Sequence[Ids]) -> list[PromptLogprobs]:
    """Score the tokens of prompts with a decoder."""
    network, found = served.model.network, dict[int, PromptLogprobs]()
    size = default_batch_tokens(network)
    for batch in batch_by_length([(len(row),) for row in rows], size):
        requests = [ScoringRequest(rows[i], (), ()) for i in batch]
        hidden = hidden_states(network, requests, bidirectional=False)  # (N, W)
        parts = hidden.split([len(rows[i]) for i in batch])
        for i, states in zip(batch, parts, strict=True):
            found[i] = _row_logprobs(served, states, rows[i], top)
    return [found[i] for i in range(len(rows))]


def _row_logprobs(served: ServedModel, states: torch.Tensor, row: Ids, top: int) -> PromptLogprobs:
    """Score the tokens of one prompt, for a limited number of positions at a time."""
    network = served.model.network
    own: list[float | None] = [None]
    best: list[tuple[TokenLogprob, ...]] = [()]
    vocab_size = network.config.vocab_size
    chunk = max(MIN_POSITIONS, MAX_LOGITS["cpu"] // vocab_size)
    for begin in range(0, len(row) - 1, chunk):
        end = min(begin + chunk, len(row) - 1)
        logprobs = network.logits(states[begin:end]).float().log_softmax(-1)  # (P, V)
        if logprobs.isnan().any():
            raise nan_error()
        targets = torch.tensor(row[begin + 1 : end + 1], device=logprobs.device)
        own += logprobs.gather(1, targets[:, None]).squeeze(1).tolist()
        values, ids = logprobs.topk(min(top, vocab_size))  # (P, K)
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        best += [tuple(map(TokenLogprob, *pair)) for pair in pairs]
    return PromptLogprobs(tuple(own), tuple(best))
