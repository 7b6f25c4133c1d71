"""The special tokens around what a model that writes is given to read."""

from __future__ import annotations

from firth.models.config import ModelConfig
from firth.text.tokenizer import Tokenizer

Around = tuple[list[int], list[int]]  # before, and behind


def around_prompt(
    config: ModelConfig, tokenizer: Tokenizer, reader: Tokenizer | None, *, taught: bool
) -> Around:
    """What stands before and behind a prompt; `reader`: the tokenizer of an encoder with its own.

    A decoder is given the token that begins a document. What an encoder reads is framed as its
    tokenizer does it, unless that begins with a token which the model has only seen if its decoder
    starts as BART's does (with the end), or if it was taught a task.
    """
    end = given(config.end_id)
    if not config.has_encoder:
        return given(config.begin_id), []
    left, right = around_text(reader or tokenizer)
    like_bart = end and config.start_id == config.end_id
    if reader is not None or taught or like_bart or (right and not left):
        return left, right
    return [], end


def around_text(tokenizer: Tokenizer) -> Around:
    """What a tokenizer's family puts before and behind a text, seen on a text of one token."""
    probe = tokenizer.backend.encode("a", add_special_tokens=False)
    probe.truncate(1)
    framed = tokenizer.backend.post_process(probe, None, True)
    added = framed.special_tokens_mask
    place = added.index(0) if 0 in added else len(added)
    return framed.ids[:place], framed.ids[place + 1 :]


def given(id: int | None) -> list[int]:
    """A special token, where there is one."""
    return [] if id is None else [id]
