"""Lone surrogates: code points that stand for a lost character, which no tokenizer encodes."""

from __future__ import annotations

import re

SURROGATE = re.compile("[\ud800-\udfff]")  # `surrogateescape` decodes invalid UTF-8 to these


def without_surrogates(text: str) -> str:
    r"""Replace lone surrogates by the replacement character.

    >>> without_surrogates("a \ud800 b")
    'a � b'
    """
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)
