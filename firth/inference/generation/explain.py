"""Probability, rank and alternatives of each generated token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from firth.inference.generation.copied_words import CopiedWords
from firth.inference.generation.detokenization import Detokenizer
from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.logits_processors import filter_logits, penalize_repetition
from firth.inference.scoring.token_scoring import ScoringRequest, hidden_states
from firth.models.language_model import ScoringModel

NUM_ALTERNATIVES = 5
MAX_LOGITS = 1 << 24  # logits in memory at a time


@dataclass(frozen=True, kw_only=True)
class TokenAlternative:
    """One of the most probable tokens at a position."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class ExplainedToken:
    """A generated token with its probability and alternatives."""

    token: str  # as text, with its leading space
    id: int
    probability: float  # before logits processors
    loss: float  # -log of that probability
    drawn: float | None  # when sampling: probability after logits processors
    rank: int  # 1: the most probable
    alternatives: tuple[TokenAlternative, ...]  # the most probable tokens, may include this one


@torch.no_grad()
def explain(
    network: ScoringModel,
    detokenizer: Detokenizer,
    prompt: Sequence[int],
    tokens: Sequence[int],
    config: GenerationConfig,
    top: int = NUM_ALTERNATIVES,
) -> tuple[ExplainedToken, ...]:
    """Compute probability, rank and alternatives of each generated token in one forward pass."""
    if not tokens:
        return ()
    copied = CopiedWords.of(network.config, [[*prompt, *tokens]])
    [numbered] = copied.prompts
    prompt, tokens = numbered[: len(prompt)], numbered[len(prompt) :]
    past, source = tuple(prompt), tuple[int, ...]()
    if network.config.has_encoder:
        past, source = (network.config.decoder_start_token_id or 0,), past
    prefix = network.config.prefix_length(len(past))
    request = ScoringRequest((*past, *tokens[:-1]), (), (), source, prefix)
    hidden = hidden_states(network, [request], bidirectional=False)[len(past) - 1 :]  # (T, W)
    chunk = max(1, MAX_LOGITS // network.config.vocab_size)
    steps = []
    for i, token in enumerate(tokens):
        if i % chunk == 0:
            chunk_logits = network.logits(hidden[i : i + chunk]).float()  # (P, V)
        logits = chunk_logits[i % chunk]
        probs = logits.softmax(-1)
        best = probs.topk(min(top, len(probs)))
        drawn = None
        if config.method == "sample":
            history = torch.tensor([[*past, *tokens[:i]]], device=logits.device)
            filtered = filter_logits(penalize_repetition(logits[None], history, config), config)
            drawn = float(filtered.softmax(-1)[0, token])
        previous = copied.restore(0, tokens[:i])
        alternatives = tuple(
            TokenAlternative(token=detokenizer.piece(previous, id), id=id, probability=prob)
            for prob, id in zip(
                best.values.tolist(), copied.restore(0, best.indices.tolist()), strict=True
            )
        )
        step = ExplainedToken(
            token=detokenizer.piece(previous, *copied.restore(0, [token])),
            id=token,
            probability=float(probs[token]),
            loss=-float(logits.log_softmax(-1)[token]),
            drawn=drawn,
            rank=1 + int((logits > logits[token]).sum()),
            alternatives=alternatives,
        )
        steps.append(step)
    return tuple(steps)
