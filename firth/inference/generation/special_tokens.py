"""The special tokens before and after the input of a generative model."""

from __future__ import annotations

from collections.abc import Sequence

from firth.models.config import LanguageModelConfig
from firth.tokenizers.tokenizer import Tokenizer

EosTokens = int | Sequence[int] | None  # the tokens that end a text
PrefixSuffix = tuple[list[int], list[int]]


def prompt_special_tokens(
    config: LanguageModelConfig,
    tokenizer: Tokenizer,
    encoder_tokenizer: Tokenizer | None,
    *,
    fine_tuned: bool,
) -> PrefixSuffix:
    """Return the special tokens before and after a prompt.

    A decoder's prompt begins with the beginning-of-text token. An encoder's input gets its
    tokenizer's special tokens, except a prefix that the model has not seen in training: it has if
    its decoder starts with the end token (BART), or if it was fine-tuned.
    """
    end = as_list(config.eos_token_id)
    if not config.has_encoder:
        return as_list(config.bos_token_id), []
    prefix, suffix = text_special_tokens(encoder_tokenizer or tokenizer)
    like_bart = end and config.decoder_start_token_id == config.eos_token_id
    if encoder_tokenizer is not None or fine_tuned or like_bart or (suffix and not prefix):
        return prefix, suffix
    return [], end


def text_special_tokens(tokenizer: Tokenizer) -> PrefixSuffix:
    """Return the special tokens a tokenizer adds before and after a text."""
    probe = tokenizer.encoding("a")
    probe.truncate(1)
    framed = tokenizer.backend.post_process(probe, None, True)
    is_special = framed.special_tokens_mask
    position = is_special.index(0) if 0 in is_special else len(is_special)
    return framed.ids[:position], framed.ids[position + 1 :]


def as_ids(ids: EosTokens) -> tuple[int, ...]:
    """Return the EOS tokens, one or several or none, as a tuple."""
    if isinstance(ids, int):
        return (ids,)
    return () if ids is None else tuple(ids)


def as_list(id: int | None) -> list[int]:
    """Return an optional token id as a list of zero or one ids."""
    return [] if id is None else [id]
