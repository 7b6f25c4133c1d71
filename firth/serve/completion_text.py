"""A completion while it is generated: text up to a stop string, tokens, log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from firth.inference.generation.detokenization import (
    CONTEXT_TOKENS,
    Detokenizer,
    TextStreamer,
    contains_stop,
)
from firth.inference.generation.sequence_request import StepToken, TokenLogprob
from firth.serve.prompt_encoding import PromptTokens
from firth.serve.prompt_logprobs import PromptLogprobs

MIN_LOGPROB = -9999.0  # in place of minus infinity, which JSON has not


@dataclass(frozen=True)
class ScoredToken:
    """A token with its text, its log-probability and those of alternatives."""

    text: str
    logprob: float | None  # None: the first token of a prompt
    top: tuple[tuple[str, float], ...] = ()
    offset: int = 0  # of its first character in the text


class CompletionText:
    """One completion of a prompt; `piece` is the text that the last token made final."""

    def __init__(
        self, prompt: PromptTokens, stops: Sequence[str], *, live: bool, scored: bool
    ) -> None:
        self.prompt, self.stops, self.scored = prompt, stops, scored
        self.live = live or bool(stops)  # text is needed at every token
        self.finish = ""  # stop or length
        self.tokens: list[ScoredToken] = []  # since the last `take_tokens`
        self.count = 0
        self._streamer = TextStreamer(prompt.detokenizer, stops)
        self.offset = 0

    def add(self, token: StepToken) -> str:
        """Add a token, and return the text that is final now."""
        self.count += 1
        ids, piece = self._streamer.tokens, ""
        if self.scored:
            self.tokens.append(self._scored(ids, token))
        if token.finish == "end":
            self.finish = "stop"
        elif self.live:
            piece = self._streamer.add(token.token)
        else:
            ids.append(token.token)
        if token.finish == "length":
            self.finish = "length"
        if self.stops and ids and contains_stop(self.prompt.detokenizer, ids, self.stops):
            self.finish = "stop"
        return piece + self._streamer.finish() if self.finish else piece

    def take_tokens(self) -> list[ScoredToken]:
        """Return the tokens since the last call."""
        found, self.tokens = self.tokens, []
        return found

    def _scored(self, ids: Sequence[int], token: StepToken) -> ScoredToken:
        piece = self.prompt.detokenizer.piece
        text, offset = piece(ids, token.token), self.offset
        self.offset += 0 if token.finish == "end" else len(text)
        top = scored_pieces(self.prompt.detokenizer, ids, token.top)
        return ScoredToken(text, max(token.logprob, MIN_LOGPROB), top, offset)


def scored_pieces(
    detokenizer: Detokenizer, ids: Sequence[int], top: Iterable[TokenLogprob]
) -> tuple[tuple[str, float], ...]:
    """Return the texts of alternatives after some tokens, with their log-probabilities."""
    return tuple((detokenizer.piece(ids, one.token), max(one.logprob, MIN_LOGPROB)) for one in top)


def scored_prompt(prompt: PromptTokens, scores: PromptLogprobs) -> list[ScoredToken]:
    """Return the tokens of a prompt with their log-probabilities."""
    found, offset = [], 0
    detokenizer = replace(prompt.detokenizer, prompt=())
    for i, id in enumerate(prompt.ids):
        before = prompt.ids[max(0, i - CONTEXT_TOKENS) : i]
        text, own = detokenizer.piece(before, id), scores.own[i]
        logprob = None if own is None else max(own, MIN_LOGPROB)
        top = scored_pieces(detokenizer, before, scores.top[i])
        found.append(ScoredToken(text, logprob, top, offset))
        offset += len(text) if i >= prompt.first else 0
    return found
