"""Prompts as token ids: of texts, token ids or messages, within the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firth.inference.generation.chat_template import Messages, render_chat
from firth.inference.generation.detokenization import Detokenizer
from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.serve.api_errors import ApiError
from firth.serve.served_model import ServedModel


@dataclass(frozen=True, kw_only=True)
class PromptTokens:
    """A prompt for generation."""

    text: str
    ids: tuple[int, ...]  # with special tokens
    first: int  # position of the first token that is part of the text
    limit: int  # maximum number of new tokens
    detokenizer: Detokenizer

    @property
    def body(self) -> tuple[int, ...]:
        """The tokens of the text, without special tokens before it."""
        return self.ids[self.first :]


def encode_prompt(
    served: ServedModel, prompt: str | Sequence[int], max_new: int, *, truncate: bool = False
) -> PromptTokens:
    """Encode a text with the model's special tokens, or check token ids, used as they are."""
    if not isinstance(prompt, str):
        size = served.model.config.input_config.vocab_size
        if (largest := max(prompt)) >= size:
            message = f"There is no token {largest}: the vocabulary has {size:,} tokens."
            raise ApiError(400, message, param="prompt")
        return _framed(served, served.tokenizer.decode(prompt), prompt, max_new, truncate=truncate)
    model = served.model
    frame = prompt_special_tokens(
        model.config,
        model.require_tokenizer(),
        model.require_encoder_tokenizer(),
        fine_tuned=model.generates,
    )
    return _framed(served, prompt, _ids(served, prompt), max_new, frame, truncate=truncate)


def encode_messages(
    served: ServedModel, messages: Messages, max_new: int, *, truncate: bool = False
) -> PromptTokens:
    """Encode messages in the model's chat template, which has the special tokens."""
    text = render_chat(served.tokenizer, messages)
    return _framed(served, text, _ids(served, text), max_new, truncate=truncate)


def _ids(served: ServedModel, text: str) -> list[int]:
    tokenizer = served.tokenizer
    is_open = served.model.config.open_vocabulary
    return tokenizer.open_encode(text) if is_open else tokenizer.encode(text)


def _framed(
    served: ServedModel,
    text: str,
    body: Sequence[int],
    max_new: int,
    frame: tuple[list[int], list[int]] = ([], []),
    *,
    truncate: bool,
) -> PromptTokens:
    """Add special tokens, and check the length; a truncated prompt loses its beginning."""
    prefix, suffix = frame
    config, context = served.model.config, served.max_output_tokens
    added = len(prefix) + len(suffix)
    if config.has_encoder:
        most, room = served.max_input_tokens, context - 1
    else:
        most = context - min(max_new, 1)
        if truncate and len(body) + added > most:
            most = max(1, context - max_new, context // 2)
        room = context - min(len(body) + added, most)
    if len(body) + added > most and not truncate:
        raise ApiError(
            400,
            f"The prompt has {len(body) + added:,} tokens, but the model's context is {context:,} "
            "tokens: shorten it, or set `truncate` to true.",
            param="prompt",
            code="context_length_exceeded",
        )
    body = body[max(0, len(body) + added - most) :]
    if not body and not added:
        raise ApiError(400, "The prompt is empty: add a word.", param="prompt")
    hidden = frozenset([*config.special_token_ids.values(), *config.eos_token_ids])
    before = () if config.has_encoder else tuple(body)
    return PromptTokens(
        text=text,
        ids=(*prefix, *body, *suffix),
        first=len(prefix),
        limit=min(max_new, room),
        detokenizer=Detokenizer(
            tokenizer=served.model.require_tokenizer(), prompt=before, hidden=hidden
        ),
    )
