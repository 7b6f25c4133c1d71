"""One token after the other: the likeliest, or one that is drawn.

S  prompts     B  texts: n of each prompt, side by side     V  vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firth.draws import derive, uniform
from firth.inference.batches import not_numbers
from firth.inference.filters import draw, narrow, repeat_less
from firth.inference.settings import Generation
from firth.inference.writing import Prompts, Writer
from firth.models.transformer import Transformer

DRAWN = 11  # the purpose of these random numbers
ENDED = ("", "end", "stop", "length")  # why a text ended; the first has not
OPEN, END, STOP, LENGTH = range(4)

# Whether the text behind a prompt (its number in the batch) has come to a stop string.
Stops = Callable[[int, Sequence[int]], bool]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written behind a prompt, in tokens; the one that ends a text is not among them."""

    tokens: tuple[int, ...]
    logprob: float  # of all tokens, the end too, under the model as it is
    score: float  # the same for each token; of beams, what the search compared
    ended: str  # end: the model ended it; stop: a stop string came; length: it was enough


class Choosing:
    """Texts that are written greedily or by drawing, step by step."""

    def __init__(
        self,
        network: Transformer,
        prompts: Prompts,
        settings: Generation,
        *,
        end: int | None,
        room: Sequence[int],
        numbers: Sequence[int],
        stops: Stops | None = None,
    ) -> None:
        """`room`: new tokens of each prompt; `numbers`: which each is, for the random numbers."""
        self.settings, self.end, self.stops = settings, end, stops
        ways, rows = settings.ways, len(prompts) * settings.ways
        past = settings.remembers
        self.writer = Writer(network, prompts, room=room, ways=ways, past=past)
        device = self.writer.logits.device
        self.room = torch.tensor(room, device=device).repeat_interleave(ways)  # (B,)
        self.most, self.at = max(room), 0
        self.tokens = torch.zeros(rows, self.most, dtype=torch.long, device=device)
        self.sums = torch.zeros(rows, dtype=torch.float64, device=device)
        self.sizes = torch.zeros(rows, dtype=torch.long, device=device)  # tokens, an end too
        self.ended = torch.zeros(rows, dtype=torch.long, device=device)  # OPEN, END, …
        self.said: list[list[int]] = [[] for _ in range(rows)]  # only where stops look at it
        self.alive = torch.arange(rows, device=device)  # (b,) the texts that the writer holds
        self.draws = None
        if settings.method == "sample":
            self.draws = _draws(settings.seed, numbers, ways, self.most).to(device)  # (most, B)

    @property
    def done(self) -> bool:
        """Whether every text has ended."""
        return self.at == self.most or len(self.alive) == 0

    @torch.no_grad()
    def step(self) -> Tensor:
        """Choose the next token of each text that is still held."""  # (b,)
        logits, alive = self.writer.logits, self.alive
        scores = repeat_less(logits, self.writer.history, self.settings)
        if self.draws is None:
            token = scores.argmax(-1)
        else:
            token = draw(narrow(scores, self.settings), self.draws[self.at, alive])
        likely = logits.gather(1, token[:, None]).squeeze(1) - logits.logsumexp(-1)
        going = self.ended[alive] == OPEN
        self.sums[alive] += likely.double().where(going, 0.0)
        self.sizes[alive] += going
        self.tokens[alive, self.at] = token
        self.at += 1
        self._end(token)
        if self.at < self.most:
            self._drop()
            if len(self.alive):
                ended = self.ended[self.alive] != OPEN
                self.writer.write(self.tokens[self.alive, self.at - 1], ended)
        return token

    def _end(self, token: Tensor) -> None:
        """Note which texts have ended with this token, and why."""
        ended = self.ended[self.alive]
        why = torch.where(self.at >= self.room[self.alive], LENGTH, OPEN)
        if self.stops is not None:
            why = why.masked_fill(self._stopped(token), STOP)
        if self.end is not None:
            why = why.masked_fill(token == self.end, END)
        self.ended[self.alive] = torch.where(ended == OPEN, why, ended)

    def _stopped(self, token: Tensor) -> Tensor:
        """Which texts have come to a stop string."""  # (b,)
        assert self.stops is not None
        found = []
        for row, id in zip(self.alive.tolist(), token.tolist(), strict=True):
            self.said[row].append(id)
            found.append(self.stops(row // self.settings.ways, self.said[row]))
        return torch.tensor(found, device=token.device)

    def _drop(self) -> None:
        """When half of the prompts have ended, go on without them."""
        ways = self.settings.ways
        going = (self.ended[self.alive] == OPEN).view(-1, ways).any(1)  # (s,)
        left = int(going.sum())  # the one thing in a step that is waited for
        if 2 * left > len(going):
            return
        kept = going.nonzero().flatten().tolist()
        self.alive = self.alive.view(-1, ways)[kept].flatten()
        if kept:
            self.writer.keep(kept)

    def written(self) -> list[list[Written]]:
        """What was written behind each prompt."""
        ways = self.settings.ways
        rows = zip(
            *(part.tolist() for part in (self.tokens, self.sizes, self.sums, self.ended)),
            strict=True,
        )
        found = [
            finished(tokens[:size], why, logprob, logprob / size)
            for tokens, size, logprob, why in rows
        ]
        return [found[i : i + ways] for i in range(0, len(found), ways)]


def finished(tokens: Sequence[int], why: int, logprob: float, score: float) -> Written:
    """A text that has ended; `tokens` may have an end."""
    if math.isnan(logprob):
        raise not_numbers()
    said = tokens[:-1] if why == END else tokens
    return Written(tokens=tuple(said), logprob=logprob, score=score, ended=ENDED[why])


def _draws(seed: int, numbers: Sequence[int], ways: int, most: int) -> Tensor:
    """A number from 0 to below 1 for each step of each text, whatever else is in the batch."""
    prompts = derive(seed, np.asarray(numbers))  # (S,)
    texts = derive(prompts[:, None], np.arange(ways)).reshape(-1)  # (B,)
    return torch.from_numpy(uniform(derive(texts, np.arange(most)[:, None]), DRAWN))  # (most, B)
