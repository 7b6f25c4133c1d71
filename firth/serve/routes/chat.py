"""`/v1/chat/completions`: replies to messages, for models with a chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from firth.serve.api_errors import ApiError
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.completion_text import CompletionText, ScoredToken
from firth.serve.event_stream import EventStream
from firth.serve.field_kinds import FieldKind, boolean, integer
from firth.serve.generation_fields import MAX_NEW_TOKENS, GenerationFields
from firth.serve.prompt_encoding import encode_messages
from firth.serve.request_fields import parameter
from firth.serve.routes.completions import (
    MAX_LOGPROBS,
    CompletionChoice,
    answer_head,
    collect,
    reserved_tokens,
    text_pieces,
    usage,
)
from firth.serve.sequence_scheduler import StepTokenStream
from firth.utils.surrogates import without_surrogates

DEFAULT_TOKENS = 1024
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MAX_MESSAGES = 2048
Message = dict[str, str]


def messages() -> FieldKind:
    """Messages of text, each with a role; texts in parts are joined."""

    def convert(value: Any) -> list[Message]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
            raise ValueError
        return [_message(one) for one in value]

    content = {"type": "string"}
    item = {
        "type": "object",
        "properties": {"role": {"type": "string", "enum": list(ROLES)}, "content": content},
        "required": ["role", "content"],
    }
    about = 'a list such as [{"role": "user", "content": "Hello!"}], with the roles '
    about += f"{', '.join(ROLES)}, text only, and no other field"
    return FieldKind(about, convert, {"type": "array", "items": item, "minItems": 1})


def _message(value: Any) -> Message:
    """Check a message; other fields, such as a name, are accepted if they are null."""
    given = {k for k, v in value.items() if v is not None} if isinstance(value, dict) else set()
    if given != {"role", "content"}:
        raise ValueError
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError
    if isinstance(content, list):
        parts = [p for p in content if isinstance(p, dict) and p.get("type") == "text"]
        if len(parts) < len(content) or not all(isinstance(p.get("text"), str) for p in parts):
            raise ValueError
        content = "".join(part["text"] for part in parts)
    if not isinstance(content, str):
        raise ValueError
    return {"role": ROLES[role], "content": without_surrogates(content)}


@dataclass(frozen=True, kw_only=True)
class ChatFields(GenerationFields):
    """The parameters of `/v1/chat/completions`."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationFields.neutral,
        "response_format": ({"type": "text"},),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none",),
        "modalities": (["text"],),
        "service_tier": ("auto", "default"),
    }

    messages: Any = parameter("The messages so far.", messages())
    max_tokens: int | None = parameter(
        f"Maximum number of new tokens. Default: {DEFAULT_TOKENS:,}, or what fits.",
        integer(minimum=1, maximum=MAX_NEW_TOKENS),
        None,
    )
    max_completion_tokens: int | None = parameter(
        "The present name of `max_tokens`.", integer(minimum=1, maximum=MAX_NEW_TOKENS), None
    )
    logprobs: bool = parameter("Return the log-probability of each token.", boolean(), False)
    top_logprobs: int = parameter(
        "Alternatives of each token; needs `logprobs`.",
        integer(minimum=0, maximum=MAX_LOGPROBS),
        0,
    )


async def chat(state: ServerState, fields: ChatFields) -> dict[str, Any] | EventStream:
    """Reply to messages."""
    entry = state.pool.find(fields.model, "chat")
    if fields.top_logprobs and not fields.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true.", param="top_logprobs")
    limit = fields.max_completion_tokens or fields.max_tokens or DEFAULT_TOKENS
    size = sum(len(message["content"]) for message in fields.messages)
    encode = partial(encode_messages, truncate=fields.truncate)
    prompt = await off_loop(size, encode, entry.served, fields.messages, limit)
    texts = [
        CompletionText(prompt, fields.stops, live=fields.stream, scored=fields.logprobs)
        for _ in range(fields.n)
    ]
    choices = [CompletionChoice(i, text) for i, text in enumerate(texts)]
    with ExitStack() as resources:
        resources.enter_context(entry.admission.reserve(reserved_tokens([prompt], fields.n)))
        requests = fields.requests(entry.served, [prompt], fields.top_logprobs)
        stream = resources.enter_context(entry.worker.generate(requests))
        state.metrics.tokens.labels(entry.served.name, "prompt").inc(len(prompt.ids))
        kind = "chat.completion.chunk" if fields.stream else "chat.completion"
        head = answer_head(kind, "chatcmpl", entry.served.name)
        if fields.stream:
            events = chat_events(head, choices, stream, fields, len(prompt.ids))
            return EventStream(events, resources.pop_all(), state.config.timeout)
        pieces = await collect(texts, stream)
    found = [_reply(choice, piece) for choice, piece in zip(choices, pieces, strict=True)]
    return {**head, "choices": found, "usage": usage(len(prompt.ids), choices)}


def _reply(choice: CompletionChoice, text: str) -> dict[str, Any]:
    """Return a whole reply as JSON values."""
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": chat_logprobs(choice.text),
        "finish_reason": choice.text.finish,
    }


def chat_logprobs(text: CompletionText) -> dict[str, Any] | None:
    """Return the log-probabilities of the tokens since the last call."""
    if not text.scored:
        return None
    return {"content": [_token(token) for token in text.take_tokens()], "refusal": None}


def _token(token: ScoredToken) -> dict[str, Any]:
    top = [_alternative(*one) for one in token.top]
    return {**_alternative(token.text, token.logprob), "top_logprobs": top}


def _alternative(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


async def chat_events(
    head: dict[str, Any],
    choices: Sequence[CompletionChoice],
    stream: StepTokenStream,
    fields: ChatFields,
    prompt_tokens: int,
) -> AsyncIterator[dict[str, Any]]:
    """Yield the role of each reply, its pieces of text, and why it ended."""
    more = {"usage": None} if fields.stream_options else {}

    def event(
        choice: CompletionChoice, delta: dict[str, str], *, last: bool = False
    ) -> dict[str, Any]:
        scores = chat_logprobs(choice.text) if choice.text.tokens else None
        finish = choice.text.finish if last else None
        values = {"index": choice.index, "delta": delta, "logprobs": scores}
        return {**head, "choices": [{**values, "finish_reason": finish}], **more}

    for choice in choices:
        yield event(choice, {"role": "assistant", "content": ""})
    async for number, piece in text_pieces([choice.text for choice in choices], stream):
        choice = choices[number]
        if piece:
            yield event(choice, {"content": piece})
        if choice.text.finish:
            yield event(choice, {}, last=True)
    if fields.stream_options:
        yield {**head, "choices": [], "usage": usage(prompt_tokens, choices)}


ROUTES = (ApiRoute("POST", "/v1/chat/completions", "Reply to messages.", chat, ChatFields),)
