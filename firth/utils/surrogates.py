"""Unpaired UTF-16 surrogates, which UTF-8 and so a tokenizer cannot encode."""

from __future__ import annotations

import re

SURROGATE = re.compile("[\ud800-\udfff]")  # `surrogateescape` decodes invalid UTF-8 to these


def without_surrogates(text: str) -> str:
    r"""Replace unpaired surrogates by the replacement character.

    >>> without_surrogates("a \ud800 b")
    'a � b'
    """
    return text if text.isascii() else SURROGATE.sub("\ufffd", text)
