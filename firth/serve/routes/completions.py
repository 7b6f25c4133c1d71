"""`/v1/completions`: OpenAI's legacy completions, with `echo` and prompt log-probabilities."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from firth.serve.api_errors import ApiError
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.completion_text import CompletionText, ScoredToken, scored_prompt
from firth.serve.event_stream import EventStream
from firth.serve.field_kinds import MAX_INPUTS, TEXTS, TOKEN_IDS, any_of, boolean, integer, list_of
from firth.serve.generation_fields import MAX_NEW_TOKENS, GenerationFields
from firth.serve.model_pool import PoolEntry
from firth.serve.prompt_encoding import PromptTokens, encode_prompt
from firth.serve.prompt_logprobs import prompt_logprobs
from firth.serve.request_fields import parameter
from firth.serve.sequence_scheduler import StepTokenStream

ID_ROWS = list_of(TOKEN_IDS, "a list of lists of token ids", minimum=1, maximum=MAX_INPUTS)
MAX_LOGPROBS = 20
MAX_SCORED = 1 << 18  # tokens of prompts and alternatives with log-probabilities


@dataclass(frozen=True, kw_only=True)
class CompletionFields(GenerationFields):
    """The parameters of `/v1/completions`."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationFields.neutral,
        "best_of": (1,),
        "suffix": ("",),
    }

    prompt: Any = parameter(
        "Text or texts to continue; or token ids, used as they are.",
        any_of(TEXTS, TOKEN_IDS, ID_ROWS),
    )
    max_tokens: int = parameter(
        "Maximum number of new tokens; 0 with `echo`: only the prompt.",
        integer(minimum=0, maximum=MAX_NEW_TOKENS),
        16,
    )
    echo: bool = parameter("Put the prompt before each completion.", boolean(), False)
    logprobs: int | None = parameter(
        "Log-probabilities of the tokens and of this many alternatives.",
        integer(minimum=0, maximum=MAX_LOGPROBS),
        None,
    )

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)


@dataclass(eq=False)
class CompletionChoice:
    """One of the completions of a request, with what precedes it."""

    index: int
    text: CompletionText
    echoed: str = ""
    echoed_tokens: Sequence[ScoredToken] = ()

    def values(self, piece: str, *, first: bool) -> dict[str, Any]:
        """Return the choice with a piece of its text, or all of it, as JSON values."""
        tokens = self.text.take_tokens()
        scored = [*self.echoed_tokens, *tokens] if first else tokens
        return {
            "index": self.index,
            "text": (self.echoed if first else "") + piece,
            "logprobs": legacy_logprobs(scored) if self.text.scored else None,
            "finish_reason": self.text.finish or None,
        }


def legacy_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Return log-probabilities in the shape of the legacy completions.

    >>> legacy_logprobs([ScoredToken("Hi", None)])["token_logprobs"]
    [None]
    """
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [_alternatives(token) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _alternatives(token: ScoredToken) -> dict[str, float] | None:
    """Return the alternatives and the token itself; of equal texts, the most probable."""
    if token.logprob is None:
        return None
    found: dict[str, float] = {}
    for text, logprob in (*token.top, (token.text, token.logprob)):
        found[text] = max(logprob, found.get(text, logprob))
    return found


async def completions(state: ServerState, fields: CompletionFields) -> dict[str, Any] | EventStream:
    """Continue prompts."""
    entry = state.pool.find(fields.model, "generate")
    if fields.echo and entry.served.has_encoder:
        raise ApiError(400, "`echo` needs a decoder: the prompt is an input here.", param="echo")
    if fields.max_tokens == 0 and not fields.echo:
        raise ApiError(400, "`max_tokens` must be at least 1 without `echo`.", param="max_tokens")
    if (size := len(fields.prompts) * fields.n) > MAX_INPUTS:
        raise ApiError(400, f"{size:,} completions are more than {MAX_INPUTS:,}.", param="n")
    prompts = await encode(entry, fields)
    with ExitStack() as resources:
        resources.enter_context(entry.admission.reserve(reserved_tokens(prompts, fields.n)))
        choices = await make_choices(entry, prompts, fields)
        stream = None
        if fields.max_tokens:
            requests = fields.requests(entry.served, prompts, fields.logprobs or 0)
            stream = resources.enter_context(entry.worker.generate(requests))
        prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
        state.metrics.tokens.labels(entry.served.name, "prompt").inc(prompt_tokens)
        head = answer_head("text_completion", "cmpl", entry.served.name)
        if fields.stream:
            events = stream_events(head, choices, stream, fields, prompt_tokens)
            return EventStream(events, resources.pop_all(), state.config.timeout)
        pieces = await collect([choice.text for choice in choices], stream)
    found = [one.values(piece, first=True) for one, piece in zip(choices, pieces, strict=True)]
    return {**head, "choices": found, "usage": usage(prompt_tokens, choices)}


async def encode(entry: PoolEntry, fields: CompletionFields) -> list[PromptTokens]:
    """Encode the prompts of a request."""
    prompts, limit = fields.prompts, fields.max_tokens

    def encode_all() -> list[PromptTokens]:
        served, cut = entry.served, fields.truncate
        return [encode_prompt(served, one, limit, truncate=cut) for one in prompts]

    return await off_loop(sum(map(len, prompts)), encode_all)


def reserved_tokens(prompts: Sequence[PromptTokens], n: int) -> int:
    """Return the tokens that the completions of prompts may have, prompts included."""
    return sum(n * (len(prompt.ids) + prompt.limit) for prompt in prompts)


async def make_choices(
    entry: PoolEntry, prompts: Sequence[PromptTokens], fields: CompletionFields
) -> list[CompletionChoice]:
    """Return the choices of a request before their first token."""
    scored = fields.logprobs is not None
    echoed: list[list[ScoredToken]] = [[] for _ in prompts]
    if fields.echo and scored:
        rows = [prompt.ids for prompt in prompts]
        sizes = [len(row) for row in rows]
        if sum(sizes) * fields.n * (1 + (fields.logprobs or 0)) > MAX_SCORED:
            raise ApiError(
                413, "These are too many log-probabilities: send fewer prompts or a smaller `n`."
            )
        scores = await entry.worker.run(prompt_logprobs, fields.logprobs, rows, sizes)
        echoed = await off_loop(8 * sum(sizes), lambda: [*map(scored_prompt, prompts, scores)])
    choices: list[CompletionChoice] = []
    for prompt, own in zip(prompts, echoed, strict=True):
        for _ in range(fields.n):
            text = CompletionText(prompt, fields.stops, live=fields.stream, scored=scored)
            text.offset = len(prompt.text) if fields.echo else 0
            text.finish = "" if prompt.limit else "length"
            choices.append(
                CompletionChoice(len(choices), text, prompt.text if fields.echo else "", own)
            )
    return choices


async def collect(texts: Sequence[CompletionText], stream: StepTokenStream | None) -> list[str]:
    """Wait for whole completions."""
    pieces = [""] * len(texts)
    async for number, piece in text_pieces(texts, stream):
        pieces[number] += piece
    return pieces


async def text_pieces(
    texts: Sequence[CompletionText], stream: StepTokenStream | None
) -> AsyncIterator[tuple[int, str]]:
    """Yield the number of a completion and the text that its next token made final.

    Generation of a completion is stopped when its text has a stop string.
    """
    if stream is None:
        return
    async for number, token in stream:
        piece = texts[number].add(token)
        if texts[number].finish and not token.finish:
            stream.stop(number)
        yield number, piece


async def stream_events(
    head: dict[str, Any],
    choices: Sequence[CompletionChoice],
    stream: StepTokenStream | None,
    fields: CompletionFields,
    prompt_tokens: int,
) -> AsyncIterator[dict[str, Any]]:
    """Yield an event for each piece of text."""
    more = {"usage": None} if fields.stream_options else {}
    unsent = set(range(len(choices)))
    for choice in choices:
        if choice.echoed or stream is None:
            unsent.discard(choice.index)
            yield {**head, "choices": [choice.values("", first=True)], **more}
    async for number, piece in text_pieces([choice.text for choice in choices], stream):
        choice = choices[number]
        if piece or choice.text.finish or choice.text.scored:
            first = number in unsent
            unsent.discard(number)
            yield {**head, "choices": [choice.values(piece, first=first)], **more}
    if fields.stream_options:
        yield {**head, "choices": [], "usage": usage(prompt_tokens, choices)}


def answer_head(kind: str, prefix: str, model: str) -> dict[str, Any]:
    """Return the fields that an answer begins with."""
    id = f"{prefix}-{secrets.token_hex(12)}"
    return {"id": id, "object": kind, "created": int(time.time()), "model": model}


def usage(prompt_tokens: int, choices: Sequence[CompletionChoice]) -> dict[str, int]:
    """Return the numbers of tokens of a request."""
    generated = sum(choice.text.count for choice in choices)
    total = prompt_tokens + generated
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": total,
    }


ROUTES = (ApiRoute("POST", "/v1/completions", "Continue prompts.", completions, CompletionFields),)
