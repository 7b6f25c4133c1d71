"""Prompts as token ids: of texts, token ids or messages, within the model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firth.inference.generation.chat_template import Messages, render_chat
from firth.inference.generation.detokenization import Detokenizer
from firth.inference.generation.special_tokens import prompt_special_tokens
from firth.serve.api_errors import ApiError
from firth.serve.served_model import ServedModel
from firth.tokenizers.special_tokens import SpecialTokens


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
        return _encoded(served, served.tokenizer.decode(prompt), prompt, max_new, truncate=truncate)
    model, body = served.model, _ids(served, prompt)
    special = prompt_special_tokens(model.config, model.input_tokenizer(), empty=not body)
    return _encoded(served, prompt, body, max_new, special, truncate=truncate)


def encode_messages(
    served: ServedModel, messages: Messages, max_new: int, *, truncate: bool = False
) -> PromptTokens:
    """Encode messages in the model's chat template, which has the special tokens."""
    text = render_chat(served.tokenizer, messages)
    return _encoded(served, text, _ids(served, text), max_new, truncate=truncate)


def _ids(served: ServedModel, text: str) -> list[int]:
    tokenizer = served.tokenizer
    is_open = served.model.config.open_vocabulary
    return tokenizer.open_encode(text) if is_open else tokenizer.encode(text)


def _encoded(
    served: ServedModel,
    text: str,
    body: Sequence[int],
    max_new: int,
    special: SpecialTokens = ([], []),
    *,
    truncate: bool,
) -> PromptTokens:
    """Add special tokens, and check the length; a truncated prompt loses its beginning."""
    (prefix, suffix), config = special, served.model.config
    size = len(prefix) + len(body) + len(suffix)
    if not size:
        raise ApiError(400, "The prompt is empty: add a word.", param="prompt")
    longest = _max_prompt_tokens(served, size, max_new, truncate=truncate)
    if size > longest and not truncate:
        raise ApiError(
            400,
            f"The prompt has {size:,} tokens, but the model's context is "
            f"{served.max_input_tokens:,} tokens: shorten it, or set `truncate` to true.",
            param="prompt",
            code="context_length_exceeded",
        )
    body = body[max(0, size - longest) :]
    taken = 1 if config.has_encoder else min(size, longest)  # 1: the decoder's start token
    hidden = frozenset([*config.special_token_ids.values(), *config.eos_token_ids])
    before = () if config.has_encoder else tuple(body)
    return PromptTokens(
        text=text,
        ids=(*prefix, *body, *suffix),
        first=len(prefix),
        limit=min(max_new, served.max_output_tokens - taken),
        detokenizer=Detokenizer(
            tokenizer=served.model.require_tokenizer(), prompt=before, hidden=hidden
        ),
    )


def _max_prompt_tokens(served: ServedModel, size: int, max_new: int, *, truncate: bool) -> int:
    """Return the maximum length of a prompt; a truncated one leaves room for the completion."""
    if served.has_encoder:
        return served.max_input_tokens
    context = served.max_output_tokens
    longest = context - min(max_new, 1)
    if truncate and size > longest:
        return max(1, context - max_new, context // 2)
    return longest
