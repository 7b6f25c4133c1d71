"""`/tokenize`, `/detokenize` and `/tokenizer_info`.

Requests with `prompt` in place of `text` have the answers of vLLM's routes, which lm-eval's
`tokenizer_backend=remote` expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from firth.inference.generation.chat_template import chat_template
from firth.serve.admission import estimate_tokens
from firth.serve.api_errors import ApiError
from firth.serve.api_route import ApiRoute, ServerState, off_loop
from firth.serve.field_kinds import MAX_TOKEN_ID, TEXT, boolean, integer, list_of
from firth.serve.model_pool import PoolEntry
from firth.serve.request_fields import RequestFields, parameter
from firth.serve.served_model import ServedModel
from firth.utils.errors import FirthError


@dataclass(frozen=True, kw_only=True)
class TokenizeFields(RequestFields):
    """The parameters of `/tokenize`."""

    text: str | None = parameter("Text to tokenize.", TEXT, None)
    special_tokens: bool = parameter("Add special tokens around the text.", boolean(), False)
    prompt: str | None = parameter("As `text`; the answer has token ids only (vLLM).", TEXT, None)
    add_special_tokens: bool = parameter("As `special_tokens`, with `prompt`.", boolean(), True)


@dataclass(frozen=True, kw_only=True)
class DetokenizeFields(RequestFields):
    """The parameters of `/detokenize`."""

    tokens: list[int] = parameter(
        "Token ids.", list_of(integer(minimum=0, maximum=MAX_TOKEN_ID), "a list of token ids")
    )
    skip_special_tokens: bool = parameter("Leave special tokens out.", boolean(), False)


def _model(state: ServerState, name: str | None) -> PoolEntry:
    """Return the named model; without a name, the only one, or the only one that generates."""
    pool = state.pool
    generating = [e for e in pool.entries.values() if "generate" in e.served.capabilities]
    if name is None and pool.ready and len(pool.entries) > 1 and len(generating) == 1:
        return generating[0]
    return pool.find(name, "tokenize")


def _encode(served: ServedModel, text: str, special: bool) -> list[dict[str, Any]]:
    encoding = served.tokenizer.encoding(text, special)
    rows = zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True)
    return [
        {"id": id, "text": token, "start": start, "end": end} for id, token, (start, end) in rows
    ]


async def tokenize(state: ServerState, fields: TokenizeFields) -> dict[str, Any]:
    """Tokenize a text."""
    entry = _model(state, fields.model)
    if (fields.text is None) == (fields.prompt is None):
        raise ApiError(400, "Give either `text` or `prompt`.", param="text")
    text, special = fields.text or "", fields.special_tokens
    if fields.prompt is not None:
        text, special = fields.prompt, fields.add_special_tokens
    with entry.admission.reserve(estimate_tokens(text)):
        found = await off_loop(len(text), _encode, entry.served, text, special)
    if fields.prompt is None:
        return {"model": entry.served.name, "tokens": found}
    ids = [token["id"] for token in found]
    return {"count": len(ids), "max_model_len": entry.served.max_input_tokens, "tokens": ids}


async def detokenize(state: ServerState, fields: DetokenizeFields) -> dict[str, Any]:
    """Decode token ids to a text."""
    entry = _model(state, fields.model)
    tokenizer, size = entry.served.tokenizer, len(entry.served.tokenizer)
    if fields.tokens and (largest := max(fields.tokens)) >= size:
        raise ApiError(
            400, f"There is no token {largest}: the vocabulary has {size:,} tokens.", param="tokens"
        )
    count, skip = len(fields.tokens), fields.skip_special_tokens
    with entry.admission.reserve(1 + count):
        text = await off_loop(count, tokenizer.decode, fields.tokens, skip)
    return {"model": entry.served.name, "text": text, "prompt": text}


async def tokenizer_info(state: ServerState, fields: RequestFields) -> dict[str, Any]:
    """Return the special tokens, the vocabulary's size and the chat template."""
    served = _model(state, fields.model).served
    tokenizer = served.tokenizer
    special = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    try:
        template: str | None = chat_template(tokenizer)
    except FirthError:
        template = None
    return {
        "model": served.name,
        "tokenizer_class": tokenizer.config.get("tokenizer_class") or "PreTrainedTokenizerFast",
        "kind": tokenizer.kind,
        "vocab_size": len(tokenizer),
        "model_max_length": served.max_input_tokens,
        **special,
        "chat_template": template,
    }


ROUTES = (
    ApiRoute("POST", "/tokenize", "The tokens of a text.", tokenize, TokenizeFields),
    ApiRoute("POST", "/detokenize", "The text of token ids.", detokenize, DetokenizeFields),
    ApiRoute("GET", "/tokenizer_info", "Special tokens and chat template.", tokenizer_info),
)
