"""The special tokens that a tokenizer adds before and after a text."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import chain

import tokenizers
from tokenizers import processors

from firth.tokenizers.tokenizer import Tokenizer

SpecialFrame = tuple[list[int], list[int]]  # before and after a text


def special_frame(tokenizer: Tokenizer) -> SpecialFrame:
    """Return the special tokens a tokenizer adds before and after a text."""
    texts = chain(["a"], (tokenizer.decode([id]) for id in range(len(tokenizer))))
    probe = next((one for text in texts if (one := tokenizer.encoding(text))), None)
    if probe is None:  # it cannot write anything
        return [], []
    probe.truncate(1)
    framed = tokenizer.backend.post_process(probe, None, True)
    is_special = framed.special_tokens_mask
    position = is_special.index(0) if 0 in is_special else len(is_special)
    return framed.ids[:position], framed.ids[position + 1 :]


def with_special_frame(
    tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]
) -> Tokenizer:
    """Return a tokenizer that adds these special tokens; of a pair, `after` follows both texts.

    >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "hi": 1}, "<s>"))
    >>> with_special_frame(Tokenizer(backend, {}), [0], []).encode("hi", specials=True)
    [0, 1]
    """
    if special_frame(tokenizer) == (list(before), list(after)):
        return tokenizer
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    names = {id: backend.id_to_token(id) for id in (*before, *after)}
    begin, end = ([names[id] for id in ids] for ids in (before, after))
    backend.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", *end, "$B", *end],
        special_tokens=[(name, id) for id, name in names.items()],
    )
    return type(tokenizer)(backend, copy(tokenizer.config))
