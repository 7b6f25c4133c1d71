"""The special tokens that a tokenizer adds before and after a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from itertools import chain
from typing import Any

import tokenizers

from firth.tokenizers.tokenizer import Tokenizer, encode_batch
from firth.utils.errors import InputError

SpecialTokens = tuple[list[int], list[int]]  # ids before and after a text


def special_tokens_around(tokenizer: Tokenizer) -> SpecialTokens:
    """Return the special tokens that a tokenizer adds before and after a text."""
    backend = tokenizer.backend
    text = encode_one_token(backend)
    if text is None:
        return [], []
    whole = backend.post_process(text, None, True)
    position = whole.special_tokens_mask.index(0)
    return whole.ids[:position], whole.ids[position + 1 :]


def encode_one_token(backend: tokenizers.Tokenizer) -> tokenizers.Encoding | None:
    """Encode a text of one token, without special tokens; None if no text has any."""
    texts = chain(["a"], (backend.decode([id]) for id in range(backend.get_vocab_size())))
    for text in texts:
        with suppress(InputError):  # a word that is not in the vocabulary
            [encoding] = encode_batch(backend, [text])
            if encoding.ids:
                encoding.truncate(1)
                return encoding
    return None


def with_special_tokens(
    tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]
) -> Tokenizer:
    """Return a tokenizer that adds these special tokens; of a pair, `after` follows both texts.

    Tokens that it does not have are left out.

    >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "hi": 1}, "<s>"))
    >>> with_special_tokens(Tokenizer(backend, {}), [0], []).encode("hi", specials=True)
    [0, 1]
    """
    names = {id: tokenizer.backend.id_to_token(id) for id in (*before, *after)}
    before, after = ([id for id in ids if names[id] is not None] for ids in (before, after))
    if special_tokens_around(tokenizer) == (before, after):
        return tokenizer
    try:
        stored = tokenizer.backend.to_str()
    except Exception:  # XLM's, with a normalizer in Python: it always adds its own
        return tokenizer
    values = json.loads(stored)
    begin, end = ([_special(names[id]) for id in ids] for ids in (before, after))
    template = {
        "type": "TemplateProcessing",
        "single": [*begin, _text("A"), *end],
        "pair": [*begin, _text("A"), *end, _text("B"), *end],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]}
            for id, name in names.items()
            if name is not None
        },
    }
    kept = _byte_level_step(values["post_processor"])
    steps = {"type": "Sequence", "processors": [kept, template]}
    values["post_processor"] = template if kept is None else steps
    backend = tokenizers.Tokenizer.from_str(json.dumps(values))
    return type(tokenizer)(backend, copy(tokenizer.config))


def _special(name: str | None) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": 0}}


def _text(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def _byte_level_step(stored: Any) -> dict[str, Any] | None:
    """Return the step by which the characters of a token do not include the space before it."""
    for step in (stored or {}).get("processors", [stored or {}]):
        if step.get("type") in ("ByteLevel", "RobertaProcessing"):
            options = {name: step[name] for name in ("add_prefix_space", "trim_offsets")}
            return {"type": "ByteLevel", **options, "use_regex": step.get("use_regex", True)}
    return None
