"""The likeliest things a decoder may write about a source, under a rule that says what fits.

Nothing is kept between the steps: what is written is short, and the rows that go on are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.inference.batches import not_numbers
from firth.inference.rows import Asked, read_rows
from firth.models.transformer import Transformer

Ids = tuple[int, ...]


class Found(NamedTuple):
    """Tokens that may be written, and the logarithm of their probability."""

    tokens: Ids
    log: float
    ended: bool = True


@dataclass(frozen=True)
class Rule:
    """What a decoder may write behind what it has written."""

    next: Callable[[Ids], Tensor | None]  # (V,) which tokens; None: any
    ends: Callable[[Ids], bool]  # whether it is complete with its last token
    most: int  # tokens


@torch.no_grad()
def search(
    network: Transformer, sources: Sequence[Ids], rules: Sequence[Rule], *, width: int
) -> list[list[Found]]:
    """The likeliest answers to each source under its rule, best first: at most `width`.

    Of the 2 * width likeliest ways to go on, those among the first `width` that are complete are
    kept, and the best `width` of the others go on, until none can become better.
    """
    live = [[Found((), 0.0, ended=False)] for _ in sources]
    done: list[list[Found]] = [[] for _ in sources]
    for step in range(max((rule.most for rule in rules), default=0)):
        todo = [i for i, rule in enumerate(rules) if live[i] and step < rule.most]
        if not todo:
            break
        ranked = _next(network, sources, rules, {i: live[i] for i in todo}, 2 * width)
        for i, candidates in zip(todo, ranked, strict=True):
            ends = [rules[i].ends(found.tokens) for found in candidates]
            pairs = list(zip(candidates, ends, strict=True))
            complete = [found._replace(ended=True) for found, end in pairs[:width] if end]
            done[i] = nlargest(width, [*done[i], *complete], key=_log)
            live[i] = [found for found, end in pairs if not end][:width]
            if len(done[i]) == width and live[i] and live[i][0].log <= done[i][-1].log:
                live[i] = []
    for i in range(len(sources)):  # what had no room to end
        done[i] = nlargest(width, [*done[i], *live[i]], key=lambda found: (found.ended, found.log))
    return done


def _log(found: Found) -> float:
    return found.log


def _next(
    network: Transformer,
    sources: Sequence[Ids],
    rules: Sequence[Rule],
    live: dict[int, list[Found]],
    most: int,
) -> Iterator[list[Found]]:
    """The likeliest ways to go on from all that are live of a source, best first."""
    start = network.config.start_id or 0
    rows = [
        Asked((start, *found.tokens), (), (), sources[i])
        for i, beams in live.items()
        for found in beams
    ]
    last = np.cumsum([len(row.row) for row in rows]) - 1
    hidden = read_rows(network, rows, False)[last.tolist()]
    logs = network.logits(hidden).float().log_softmax(-1).cpu()  # (rows, V)
    if logs.isnan().any():
        raise not_numbers()
    at = 0
    for i, beams in live.items():
        own = logs[at : at + len(beams)] + torch.tensor([[found.log] for found in beams])
        at += len(beams)
        for row, found in zip(own, beams, strict=True):
            if (allowed := rules[i].next(found.tokens)) is not None:
                row[~allowed] = -torch.inf
        best = own.flatten().topk(min(most, own.numel()))
        yield [
            Found((*beams[place // own.shape[1]].tokens, place % own.shape[1]), log, ended=False)
            for log, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            if log > -torch.inf
        ]
