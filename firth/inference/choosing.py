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
from torch.nn.functional import cross_entropy

from firth.draws import derive, uniform
from firth.inference.batches import not_numbers
from firth.inference.filters import draw, narrow, repeat_less
from firth.inference.replay import Replayed
from firth.inference.settings import Generation
from firth.inference.writing import Prompts, Writer
from firth.models.transformer import Transformer
from firth.native.decoder import Choice

# Seeing whether texts have ended waits for a GPU: it is done only every so many steps there.
LOOK = {"cuda": 8}
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

    @torch.inference_mode()
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
        self.writer = Writer(network, prompts, settings, room)
        device = self.writer.logits.device
        self.most, self.at = max(room), 0
        self.tokens = torch.zeros(rows, self.most, dtype=torch.long, device=device)
        self.sums = torch.zeros(rows, dtype=torch.float64, device=device)
        self.sizes = torch.zeros(rows, dtype=torch.long, device=device)  # tokens, an end too
        self.ended = torch.zeros(rows, dtype=torch.long, device=device)  # OPEN, END, …
        self.room = torch.tensor(room, device=device).repeat_interleave(ways)
        self.draws: Tensor | None = None  # (B, most)
        if settings.method == "sample":
            self.draws = _draws(settings.seed, numbers, ways, self.most).to(device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)  # `at`, where the others are
        self.alive = list(range(rows))  # the texts that are still held
        self.found: dict[int, Written] = {}  # and the others
        self.said: list[list[int]] = [[] for _ in range(rows)]  # only where stops look at it
        self._whole = Replayed(device)

    @property
    def done(self) -> bool:
        """Whether every text has ended."""
        return self.at == self.most or not self.alive

    @torch.inference_mode()
    def step(self, most: int = 1) -> Tensor:
        """Choose the next token of each text that is still held, or up to so many; the last."""
        plain = not self.settings.remembers and self.stops is None
        if plain and self.draws is None and (count := self.writer.choose(self._choice(), most)):
            self.at += count
            return self._go_on(self.tokens[:, self.at - 1])
        self.at += 1
        if plain and self._whole.records and self.at < self.most:
            self.writer.replay(self._whole, self._choose_and_see)
            token = self.tokens[:, self.at - 1]
            self._drop()
            return token
        return self._go_on(self._choose())

    def _go_on(self, token: Tensor) -> Tensor:
        """See the tokens that were chosen, of the texts that are still held then."""  # (B,)
        if self.at < self.most:
            rows = self._drop()
            if self.alive:
                self.writer.write(token[rows], self.ended != OPEN)
        return token

    def _choice(self) -> Choice:
        """Where C notes what it chooses."""
        names = ("tokens", "sums", "sizes", "ended", "place", "room")
        places = {name: getattr(self, name).data_ptr() for name in names}
        end, words = -1 if self.end is None else self.end, self.writer.logits.shape[1]
        return Choice(**places, most=self.most, words=words, end=end)

    def _choose_and_see(self) -> None:
        self.writer.note(self._choose(), self.ended != OPEN)
        self.writer.see()

    def _choose(self) -> Tensor:
        """The next token of each text; nothing waits for it."""  # (B,)
        logits = self.writer.logits
        scores = repeat_less(logits, self.writer.history, self.settings)
        if self.draws is None:
            token = scores.argmax(-1)
        else:
            drawn = self.draws.index_select(1, self.place).squeeze(1)
            token = draw(narrow(scores, self.settings), drawn)
        surprise = cross_entropy(logits, token, reduction="none")  # (B,)
        going = self.ended == OPEN
        self.sums -= surprise.where(going, 0.0)
        self.sizes += going
        self.tokens.index_copy_(1, self.place, token[:, None])
        self.place += 1
        self.ended += self._why(token) * going
        return token

    def _why(self, token: Tensor) -> Tensor:
        """Why each text ends with this token, if it does."""  # (B,)
        why = torch.where(self.place >= self.room, LENGTH, OPEN)
        if self.stops is not None:
            why = why.masked_fill(self._stopped(token), STOP)
        return why if self.end is None else why.masked_fill(token == self.end, END)

    def _stopped(self, token: Tensor) -> Tensor:
        """Which texts have come to a stop string."""  # (B,)
        assert self.stops is not None
        found = []
        for row, id in zip(self.alive, token.tolist(), strict=True):
            self.said[row].append(id)
            found.append(self.stops(row // self.settings.ways, self.said[row]))
        return torch.tensor(found, device=token.device)

    def _drop(self) -> Tensor | slice:
        """When half of the prompts have ended, go on without them; the rows that go on."""
        if self.at % LOOK.get(self.place.device.type, 1):
            return slice(None)
        ways = self.settings.ways
        going = (self.ended == OPEN).view(-1, ways).any(1)  # (S,)
        left = int(going.sum())  # the one thing that is waited for
        if 2 * left > len(going):
            return slice(None)
        self._finish()
        kept = going.nonzero().flatten()
        rows = (kept[:, None] * ways + torch.arange(ways, device=kept.device)).flatten()
        self.alive = [self.alive[row] for row in rows.tolist()]
        for name in ("tokens", "sums", "sizes", "ended", "room"):
            setattr(self, name, getattr(self, name)[rows])
        self.draws = None if self.draws is None else self.draws[rows]
        if self.alive:
            self.writer.keep(kept.tolist())
            self._whole = Replayed(rows.device)
        return rows

    def _finish(self) -> None:
        """Take down the texts that are held, as far as they are."""
        parts = self.tokens, self.sizes, self.sums, self.ended
        for row, *found in zip(self.alive, *(part.tolist() for part in parts), strict=True):
            tokens, size, logprob, why = found
            self.found[row] = finished(tokens[:size], why, logprob, logprob / size)

    def written(self) -> list[list[Written]]:
        """What was written behind each prompt."""
        self._finish()
        ways, texts = self.settings.ways, [self.found[row] for row in sorted(self.found)]
        return [texts[i : i + ways] for i in range(0, len(texts), ways)]


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
    return torch.from_numpy(uniform(derive(texts[:, None], np.arange(most)), DRAWN))  # (B, most)
