"""Blanks: how people write them into a text, and what the text is once they are filled.

`[MASK]`, `<mask>`, `<extra_id_0>` and `___` all mean the same; a model reads its own mark for it.
What is put in joins the text around it as its tokens say: `##s` and `Ġdog` know where they belong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firth.errors import Misuse
from firth.text.tokenizer import SENTINEL, Tokenizer

NUMBERED = r"<extra_id_\d+>"
MARKS = (r"\[MASK\]", r"<mask>", NUMBERED, r"_{3,}")


class Piece(NamedTuple):
    """What is put into a blank, and whether it joins the word before it, or the one behind it."""

    text: str
    joins_before: bool = False
    joins_behind: bool = False
    begins: bool = True  # a word, with a space before it; False: as the blank stood


@dataclass(frozen=True)
class Blanks:
    """A text with blanks: the parts between them, one more than there are blanks."""

    parts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.parts) - 1

    def marked(self, marks: Sequence[str]) -> str:
        """The text with a mark in each blank."""
        marks = [*marks, ""]
        return "".join(f"{part}{mark}" for part, mark in zip(self.parts, marks, strict=True))

    def filled(self, pieces: Sequence[Piece]) -> str:
        """The text with a piece in each blank.

        >>> blanks = find_blanks("The [MASK] bark [MASK] loudly.")
        >>> blanks.filled([Piece("dog"), Piece("ed", joins_before=True)])
        'The dog barked loudly.'
        """
        text = self.parts[0]
        for piece, part in zip(pieces, self.parts[1:], strict=True):
            text = _joined(text, piece, part)
        return text


def _joined(before: str, piece: Piece, behind: str) -> str:
    if not piece.text:  # nothing belongs there: one space is enough
        spare = (not before or before[-1].isspace()) and behind[:1].isspace()
        return before + (behind[1:] if spare else behind)
    if piece.joins_before:
        before = before.rstrip()
    elif piece.begins and before[-1:].isalnum():
        before += " "
    return before + piece.text + (behind.lstrip() if piece.joins_behind else behind)


def find_blanks(text: str, own: str = "[MASK]") -> Blanks:
    """The blanks of a text: a model's own mark, or else the first kind of mark that is there.

    >>> find_blanks("A ___ and a ____.")
    Blanks(parts=('A ', ' and a ', '.'))
    >>> len(find_blanks("A <extra_id_0> and a <extra_id_1>.", own="<extra_id_0>"))
    2
    """
    first = NUMBERED if re.fullmatch(NUMBERED, own) else re.escape(own)
    for mark in (first, *MARKS):
        parts = re.split(mark, text)
        if len(parts) > 1:
            return Blanks(tuple(parts))
    raise Misuse(f"There is no {own} in the text: write one, or ___, where something is missing.")


def sentinels(count: int) -> list[str]:
    """T5's marks, in order.

    >>> sentinels(2)
    ['<extra_id_0>', '<extra_id_1>']
    """
    return [SENTINEL.format(number) for number in range(count)]


def token_piece(tokenizer: Tokenizer, id: int) -> Piece:
    """A single token, as it is put into a blank."""
    token, text = str(tokenizer.backend.id_to_token(id)), tokenizer.decode([id])
    if tokenizer.kind == "char":
        return Piece(text or token, begins=False)
    if tokenizer.kind == "wordpiece":
        joins = token.startswith("##")
        return Piece(token.removeprefix("##"), joins_before=joins, begins=token[:1].isalnum())
    if tokenizer.kind == "bpe-word":  # a token says where a word ends, not where one begins
        ends = token.endswith("</w>")
        return Piece(text.strip(), joins_behind=not ends, begins=False)
    return Piece(text.strip(), joins_before=not token.startswith(("Ġ", "▁", "Ċ")))


def span_piece(tokenizer: Tokenizer, ids: Sequence[int]) -> Piece:
    """Several tokens, as they are put into a blank."""
    if not ids:
        return Piece("")
    first, last = token_piece(tokenizer, ids[0]), token_piece(tokenizer, ids[-1])
    text = tokenizer.decode(ids, skip_specials=True).strip().removeprefix("##")
    return Piece(text, first.joins_before, last.joins_behind, first.begins)


def cut_words(tokenizer: Tokenizer, words: Sequence[str], *, spaced: bool) -> list[list[int]]:
    """The tokens of each word, behind a space or at the beginning of a text."""
    before = tokenizer.encode("a") if spaced else []
    texts = [f"a {word}" if spaced else word for word in words]
    made = tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids[len(before) :] for encoding in made]
