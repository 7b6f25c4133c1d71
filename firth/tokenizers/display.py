"""Tokens as readable text, for tables and pages.

A space is shown as `·`, a line break as `⏎`, a tab as `⇥`; bytes that are only a part of a
character, and characters that cannot be printed, as in Python (`\\xc3`). WordPiece has no token
with a space: its `##` stays. Special tokens stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from firth.tokenizers.open_vocabulary import FIRST_OPEN_ID, open_word

if TYPE_CHECKING:
    from firth.tokenizers.tokenizer import Tokenizer

WHITE_SPACE = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥"})
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")  # of SentencePiece: <0x0A>


def display_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the readable text of each token; `<id 9>` for an id that the vocabulary lacks.

    >>> import firth
    >>> tokenizer = firth.load("stories-decoder").tokenizer
    >>> display_tokens(tokenizer, tokenizer.encode("The dog.\\n") + [9999])
    ['The', '·dog', '.', '⏎', '<id 9999>']
    """
    added = tokenizer.backend.get_added_tokens_decoder()
    names = dict[int, str]()
    for id in {int(id) for id in ids}:
        token = tokenizer.backend.id_to_token(id)
        if id >= FIRST_OPEN_ID:
            names[id] = open_word(id)
        elif token is None:
            names[id] = f"<id {id}>"
        elif id in added:
            names[id] = token if added[id].special else show_white_space(token)
        else:
            names[id] = show_white_space(_token_text(tokenizer, token))
    return [names[int(id)] for id in ids]


def _token_text(tokenizer: Tokenizer, token: str) -> str:
    """Decode one token of the vocabulary to text."""
    if tokenizer.is_byte_level:
        return decode_byte_level(token)
    if tokenizer.kind == "wordpiece":
        return token
    if byte := BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(byte[1]).decode("utf-8", "backslashreplace")
    return re.sub("</w>$", " ", token) if tokenizer.kind == "bpe-word" else token.replace("▁", " ")


def decode_byte_level(token: str) -> str:
    """Decode GPT-2's characters for bytes; a part of a character stays as `\\xc3`.

    >>> decode_byte_level("ĠÃ©tÃ©"), decode_byte_level("Ã"), decode_byte_level("…")
    (' été', '\\\\xc3', '…')
    """
    if any(character not in BYTE_OF for character in token):
        return token
    return bytes(BYTE_OF[character] for character in token).decode("utf-8", "backslashreplace")


def show_white_space(text: str) -> str:
    """Make spaces, line breaks, tabs and characters that cannot be printed visible.

    >>> show_white_space(" a\\n\\x1b")
    '·a⏎\\\\x1b'
    """
    text = text.translate(WHITE_SPACE)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _byte_alphabet() -> dict[str, int]:
    """Map GPT-2's characters to bytes: printable bytes are themselves, others start at 256."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


BYTE_OF = _byte_alphabet()
