"""Beam search over an encoder-decoder's output under a constraint on the allowed tokens.

It recomputes each prefix instead of keeping a key/value cache: outputs are short and beams few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.batching import nan_error
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states
from firth.models.language_model import LanguageNetwork

Ids = tuple[int, ...]


class SpanCandidate(NamedTuple):
    """Generated tokens and their log-probability."""

    tokens: Ids
    log_prob: float
    ended: bool = True


@dataclass(frozen=True)
class SpanConstraint:
    """Which tokens may follow generated ones, and when the output is complete."""

    next: Callable[[Ids], Tensor | None]  # (V,) allowed tokens; None: all
    ends: Callable[[Ids], bool]  # whether the output ends with its last token
    max_tokens: int


@torch.no_grad()
def constrained_beam_search(
    network: LanguageNetwork, sources: Sequence[Ids], rules: Sequence[SpanConstraint], *, beams: int
) -> list[list[SpanCandidate]]:
    """Return up to `beams` outputs for each source under its constraint, best first.

    Of the 2 * beams best continuations, those among the first `beams` that are complete are kept,
    and the best `beams` of the others continue, until none can become better.
    """
    running = [[SpanCandidate((), 0.0, ended=False)] for _ in sources]
    done: list[list[SpanCandidate]] = [[] for _ in sources]
    for step in range(max((rule.max_tokens for rule in rules), default=0)):
        active = [i for i, rule in enumerate(rules) if running[i] and step < rule.max_tokens]
        if not active:
            break
        ranked = _continuations(network, sources, rules, {i: running[i] for i in active}, 2 * beams)
        for i, candidates in zip(active, ranked, strict=True):
            pairs = [(candidate, rules[i].ends(candidate.tokens)) for candidate in candidates]
            complete = [candidate._replace(ended=True) for candidate, end in pairs[:beams] if end]
            done[i] = nlargest(beams, [*done[i], *complete], key=_log_prob)
            running[i] = [candidate for candidate, end in pairs if not end][:beams]
            full = len(done[i]) == beams and running[i]
            if full and running[i][0].log_prob <= done[i][-1].log_prob:
                running[i] = []
    for i in range(len(sources)):  # outputs that reached the token limit
        both = [*done[i], *running[i]]
        done[i] = nlargest(beams, both, key=lambda candidate: (candidate.ended, candidate.log_prob))
    return done


def _log_prob(candidate: SpanCandidate) -> float:
    return candidate.log_prob


def _continuations(
    network: LanguageNetwork,
    sources: Sequence[Ids],
    rules: Sequence[SpanConstraint],
    running: dict[int, list[SpanCandidate]],
    count: int,
) -> Iterator[list[SpanCandidate]]:
    """Yield the best continuations of each source's running beams, best first."""
    start = network.config.decoder_start_token_id or 0
    rows = [
        ScoringRequest((start, *beam.tokens), (), (), sources[i])
        for i, beams in running.items()
        for beam in beams
    ]
    last = np.cumsum([len(row.tokens) for row in rows]) - 1
    hidden = hidden_states(network, rows, False)[last.tolist()]
    log_probs = network.logits(hidden).float().log_softmax(-1).cpu()  # (rows, V)
    if log_probs.isnan().any():
        raise nan_error()
    at = 0
    for i, beams in running.items():
        own = log_probs[at : at + len(beams)] + torch.tensor([[beam.log_prob] for beam in beams])
        at += len(beams)
        for row, beam in zip(own, beams, strict=True):
            if (allowed := rules[i].next(beam.tokens)) is not None:
                row[~allowed] = -torch.inf
        best = own.flatten().topk(min(count, own.numel()))
        vocab_size = own.shape[1]
        yield [
            SpanCandidate((*beams[k // vocab_size].tokens, k % vocab_size), value, ended=False)
            for value, k in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if value > -torch.inf
        ]
