"""The special tokens before and after the input of a generative model."""

from __future__ import annotations

from collections.abc import Sequence

from firth.models.config import LanguageModelConfig
from firth.tokenizers.special_tokens import SpecialTokens, special_tokens_around
from firth.tokenizers.tokenizer import Tokenizer

EosTokens = int | Sequence[int] | None  # the tokens that end a text


def prompt_special_tokens(
    config: LanguageModelConfig, tokenizer: Tokenizer, *, empty: bool = False
) -> SpecialTokens:
    """Return the special tokens before and after a prompt: those that its tokenizer adds.

    Nothing follows a decoder's prompt, because the model continues it. An empty prompt begins with
    BOS if the tokenizer adds nothing.
    """
    before, after = special_tokens_around(tokenizer)
    after = after if config.has_encoder else []
    return (as_list(config.bos_token_id), []) if empty and not before + after else (before, after)


def as_ids(ids: EosTokens) -> tuple[int, ...]:
    """Return the EOS tokens, one or several or none, as a tuple."""
    if isinstance(ids, int):
        return (ids,)
    return () if ids is None else tuple(ids)


def as_list(id: int | None) -> list[int]:
    """Return an optional token id as a list of zero or one ids."""
    return [] if id is None else [id]
