"""How each token of a text was chosen: its probability, and what else could have stood there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firth.inference.filters import narrow, repeat_less
from firth.inference.settings import Generation
from firth.inference.spelling import Speller
from firth.models.masks import Mask
from firth.models.transformer import Transformer

TOP = 5  # alternatives that are told
SCORES = 1 << 24  # numbers held at a time: the scores of all tokens at some places


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A token that could have stood there."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One token of a text."""

    token: str  # as it reads, with a space where it has one
    id: int
    probability: float  # under the model as it is
    drawn: float | None  # with what probability it was drawn, once scores were filtered
    rank: int  # 1: the likeliest
    alternatives: tuple[Alternative, ...]  # the likeliest tokens, itself perhaps among them


@torch.no_grad()
def explain(
    network: Transformer,
    speller: Speller,
    prompt: Sequence[int],
    tokens: Sequence[int],
    settings: Generation,
    top: int = TOP,
) -> tuple[Step, ...]:
    """What the network thought at each token that was written behind a prompt, all seen at once."""
    if not tokens:
        return ()
    hidden, past = _read(network, prompt, tokens)  # (T, W): what is seen before each token
    at_once = max(1, SCORES // network.config.vocabulary)
    steps = []
    for place, token in enumerate(tokens):
        if place % at_once == 0:
            logits = network.logits(hidden[place : place + at_once]).float()  # (P, V)
        scores = logits[place % at_once]
        shares = scores.softmax(-1)
        best = shares.topk(min(top, len(shares)))
        drawn = None
        if settings.method == "sample":
            history = torch.tensor([[*past, *tokens[:place]]], device=scores.device)
            left = narrow(repeat_less(scores[None], history, settings), settings)
            drawn = float(left.softmax(-1)[0, token])
        said = tokens[:place]
        alternatives = tuple(
            Alternative(token=speller.piece(said, id), id=id, probability=share)
            for share, id in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
        step = Step(
            token=speller.piece(said, token),
            id=token,
            probability=float(shares[token]),
            drawn=drawn,
            rank=1 + int((scores > scores[token]).sum()),
            alternatives=alternatives,
        )
        steps.append(step)
    return tuple(steps)


def _read(
    network: Transformer, prompt: Sequence[int], tokens: Sequence[int]
) -> tuple[Tensor, Sequence[int]]:
    """What the head sees before each token, and the tokens the decoder was given before them."""
    device = network.tokens.weight.device
    past = [network.config.start_id or 0] if network.config.has_encoder else list(prompt)
    row = torch.tensor([*past, *tokens[:-1]], device=device)
    mask = Mask.causal([len(row)], device=device)
    if not network.config.has_encoder:
        return network(row, mask)[len(past) - 1 :], past
    read = Mask([len(prompt)], device=device)
    memory = network.encode(torch.tensor(list(prompt), device=device), read)
    return network(row, mask, memory=memory, memory_mask=read), past
