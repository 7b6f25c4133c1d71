"""Beam search: several texts at a time, always those with the highest probability so far.

    S  prompts     K  beams     V  vocabulary     M  tokens that may be written

Scores, ends and ties are handled as `transformers` does it, so that both find the same texts: of
the 2 K likeliest continuations of a prompt, the best K that have not ended go on; those among the
first K that have ended are kept if they are better than what was kept before, their
log-probabilities divided by length ** length_penalty (Wu et al. 2016, section 7, for the idea).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from firth.inference.choosing import (
    END,
    LENGTH,
    LOOK,
    OPEN,
    STOP,
    Stops,
    Written,
    finished,
)
from firth.inference.filters import repeat_less
from firth.inference.settings import Generation
from firth.inference.writing import Prompts, Writer
from firth.models.transformer import Transformer

LOST = -1e9  # worse than any real score, and still a number


@dataclass
class Beams:
    """K texts of each prompt, the best first."""

    tokens: Tensor  # (S, K, M)
    scores: Tensor  # (S, K) what they are compared by
    logprobs: Tensor  # (S, K) under the model as it is
    sizes: Tensor  # (S, K) how many tokens
    ended: Tensor  # (S, K) OPEN, END, …

    @classmethod
    def empty(cls, prompts: int, beams: int, most: int, device: torch.device) -> Beams:
        """So many that are not there yet."""
        numbers = torch.zeros(prompts, beams, dtype=torch.long, device=device)
        scores = torch.full((prompts, beams), LOST, device=device)
        tokens = numbers.new_zeros(prompts, beams, most)
        return cls(tokens, scores, torch.zeros_like(scores), numbers, numbers)

    def take(self, which: Tensor) -> Beams:
        """Some of each prompt's."""  # which: (S, J)
        return Beams(
            *(
                part.take_along_dim(which if part.dim() == 2 else which[..., None], 1)
                for part in self.parts()
            )
        )

    def best(self, other: Beams) -> Beams:
        """The best of two, as many as these are."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        both = Beams(*(torch.cat(pair, 1) for pair in pairs))
        return both.take(both.scores.topk(self.scores.shape[1]).indices)

    def keep(self, prompts: Sequence[int]) -> Beams:
        """Those of some prompts."""
        return Beams(*(part[list(prompts)] for part in self.parts()))

    def parts(self) -> list[Tensor]:
        """Its tensors."""
        return [getattr(self, field.name) for field in fields(self)]


@torch.inference_mode()
def beam_search(
    network: Transformer,
    prompts: Prompts,
    settings: Generation,
    *,
    end: int | None,
    room: Sequence[int],
    stops: Stops | None = None,
) -> list[list[Written]]:
    """The n best texts behind each prompt, the best first."""
    writer = Writer(network, prompts, settings, room)
    search = Search(writer, settings, end, room, stops)
    found: dict[int, list[Written]] = {}
    look = LOOK.get(writer.logits.device.type, 1)
    while search.alive:
        search.step()
        looks = search.at % look == 0 or search.at == max(room)
        going = search.going.tolist() if looks else []  # the one thing that is waited for
        ended = [i for i, goes in enumerate(going) if not goes]
        if looks and 2 * len(ended) >= len(going):
            found |= {search.alive[i]: search.written(i) for i in ended}
            search.keep([i for i, goes in enumerate(going) if goes])
        if search.alive:
            search.write()
    return [found[i] for i in range(len(prompts))]


class Search:
    """The state of a beam search: what goes on, and what has ended."""

    def __init__(
        self,
        writer: Writer,
        settings: Generation,
        end: int | None,
        room: Sequence[int],
        stops: Stops | None,
    ) -> None:
        self.writer, self.settings, self.end, self.stops = writer, settings, end, stops
        prompts, device = len(room), writer.logits.device
        size = prompts, settings.beams, max(room), device
        self.running, self.kept = Beams.empty(*size), Beams.empty(*size)
        self.running.scores[:, 0] = 0.0  # at first all beams are the same: one counts
        self.room = torch.tensor(room, device=device)[:, None]  # (S, 1)
        self.going = torch.ones(prompts, dtype=torch.bool, device=device)
        self.alive = list(range(prompts))
        self.at = 0  # tokens written so far

    def step(self) -> None:
        """Choose one more token of every beam."""
        found, parents = self._candidates()  # the 2 K best of each prompt
        self.at += 1
        over, beams = found.ended != OPEN, self.settings.beams
        self._keep_ended(found, over)
        unended = found.scores + over * LOST
        best = unended.topk(beams).indices
        self.running = found.take(best)
        self.running.scores = unended.take_along_dim(best, 1)
        offsets = torch.arange(len(self.alive), device=best.device)[:, None] * beams
        self.writer.move((parents.take_along_dim(best, 1) + offsets).flatten())
        self.going = self.going & self._may_improve() & (self.at < self.room[:, 0])

    def _keep_ended(self, found: Beams, over: Tensor) -> None:
        """Of what has ended, keep what is better than what was kept."""
        first = torch.arange(over.shape[1], device=over.device) < self.settings.beams
        counts = over & first & self.going[:, None]
        if self.settings.early_stopping is True:
            counts = counts & (self.kept.ended == OPEN).any(1, keepdim=True)
        fair = found.scores / float(self.at**self.settings.length_penalty)
        scores, ended = fair.where(counts, LOST), found.ended.where(counts, OPEN)
        self.kept = self.kept.best(replace(found, scores=scores, ended=ended))

    def _candidates(self) -> tuple[Beams, Tensor]:
        """The likeliest continuations, and the beam that each continues."""
        running, beams, at = self.running, self.settings.beams, self.at
        plain = self.writer.logits.log_softmax(-1)  # (S K, V)
        allowed = repeat_less(plain, self.writer.history, self.settings)
        vocabulary = plain.shape[1]
        totals = allowed.view(-1, beams, vocabulary) + running.scores[..., None]
        scores, places = totals.flatten(1).topk(min(2, vocabulary) * beams)  # (S, 2 K)
        parents, tokens = places // vocabulary, places % vocabulary
        found = running.take(parents)
        found.tokens[..., at] = tokens
        found.scores = scores
        found.logprobs = found.logprobs + plain.view(len(scores), -1).gather(1, places)
        found.sizes = torch.full_like(found.sizes, at + 1)
        found.ended = self._ends(found.tokens[..., : at + 1])
        return found, parents

    def _ends(self, tokens: Tensor) -> Tensor:
        """Why each text has ended with its last token, if it has."""  # (S, J, T) -> (S, J)
        prompts, texts, size = tokens.shape
        why = torch.where(size >= self.room, LENGTH, OPEN).expand(prompts, texts)
        if self.stops is not None:
            stopped = [
                [self.stops(self.alive[i], text) for text in row]
                for i, row in enumerate(tokens.tolist())
            ]
            why = why.masked_fill(torch.tensor(stopped, device=why.device), STOP)
        return why if self.end is None else why.masked_fill(tokens[..., -1] == self.end, END)

    def _may_improve(self) -> Tensor:
        """Whether a running beam may still become better than the worst that is kept."""  # (S,)
        settings, kept = self.settings, self.kept
        missing = (kept.ended == OPEN).any(1)
        if settings.early_stopping is True:
            return missing
        size: Tensor | int = self.at
        if settings.early_stopping == "never" and settings.length_penalty > 0:
            size = self.room[:, 0].double()
        hoped = self.running.scores[:, 0] / size**settings.length_penalty
        return missing | (hoped > kept.scores.min(1).values)

    def write(self) -> None:
        """Let the network see the tokens that go on."""
        ended = (~self.going).repeat_interleave(self.settings.beams)
        self.writer.write(self.running.tokens[..., self.at - 1].flatten(), ended)

    def keep(self, prompts: Sequence[int]) -> None:
        """Go on with some of the prompts."""
        self.alive = [self.alive[i] for i in prompts]
        if prompts:
            self.writer.keep(prompts)
            self.running, self.kept = self.running.keep(prompts), self.kept.keep(prompts)
            self.room, self.going = self.room[list(prompts)], self.going[list(prompts)]

    def written(self, prompt: int) -> list[Written]:
        """The n best texts behind one of the prompts."""
        kept, n = self.kept, self.settings.n
        rows = zip(*(part[prompt, :n].tolist() for part in kept.parts()), strict=True)
        return [
            finished(tokens[:size], why, logprob, score)
            for tokens, score, logprob, size, why in rows
            if why != OPEN  # there were so few
        ]
