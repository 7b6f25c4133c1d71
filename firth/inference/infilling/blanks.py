"""Blanks in a text: find their marks, and fill them.

`[MASK]`, `<mask>`, `<extra_id_0>` and `___` are equivalent and become the model's own mark. Whether
a fill joins the word before it depends on its tokens: `##s` does, `Ġdog` does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from firth.tokenizers.tokenizer import SENTINEL, Tokenizer, encode_batch
from firth.utils.errors import UsageError

SENTINEL_PATTERN = r"<extra_id_\d+>"
BLANK_PATTERNS = (r"\[MASK\]", r"<mask>", SENTINEL_PATTERN, r"_{3,}")


class BlankFill(NamedTuple):
    """The text for a blank, and whether it joins the word before or after it."""

    text: str
    joins_before: bool = False
    joins_after: bool = False
    starts_word: bool = True  # needs a space before it; False: as at the blank


@dataclass(frozen=True)
class BlankedText:
    """A text with blanks: the parts around them, one more than there are blanks."""

    parts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.parts) - 1

    def with_marks(self, marks: Sequence[str]) -> str:
        """Return the text with a mark in each blank."""
        marks = [*marks, ""]
        return "".join(f"{part}{mark}" for part, mark in zip(self.parts, marks, strict=True))

    def filled(self, fills: Sequence[BlankFill]) -> str:
        """Return the text with its blanks filled.

        >>> blanks = find_blanks("The [MASK] bark [MASK] loudly.")
        >>> blanks.filled([BlankFill("dog"), BlankFill("ed", joins_before=True)])
        'The dog barked loudly.'
        """
        text = self.parts[0]
        for fill, part in zip(fills, self.parts[1:], strict=True):
            text = _join(text, fill, part)
        return text


def _join(before: str, fill: BlankFill, after: str) -> str:
    if not fill.text:  # one of the two spaces around an empty fill is enough
        double_space = (not before or before[-1].isspace()) and after[:1].isspace()
        return before + (after[1:] if double_space else after)
    if fill.joins_before:
        before = before.rstrip()
    elif fill.starts_word and before[-1:].isalnum():
        before += " "
    return before + fill.text + (after.lstrip() if fill.joins_after else after)


def has_blanks(text: str) -> bool:
    """Tell whether a text has a blank in any notation.

    >>> has_blanks("The ___ ran."), has_blanks("The dog ran.")
    (True, False)
    """
    return re.search("|".join(BLANK_PATTERNS), text) is not None


def find_blanks(text: str, mark: str = "[MASK]") -> BlankedText:
    """Split a text at its blanks: the model's own mark, or else the first known mark in it.

    >>> find_blanks("A ___ and a ____.")
    BlankedText(parts=('A ', ' and a ', '.'))
    >>> len(find_blanks("A <extra_id_0> and a <extra_id_1>.", mark="<extra_id_0>"))
    2
    """
    first = SENTINEL_PATTERN if re.fullmatch(SENTINEL_PATTERN, mark) else re.escape(mark)
    for pattern in (first, *BLANK_PATTERNS):
        parts = re.split(pattern, text)
        if len(parts) > 1:
            if other := re.search("|".join(BLANK_PATTERNS), " ".join(parts)):
                here = re.search(pattern, text)
                assert here is not None
                raise UsageError(
                    f"The text has blanks of two kinds, {here[0]} and {other[0]}: write all alike."
                )
            return BlankedText(tuple(parts))
    raise UsageError(f"The text has no blank: write {mark} or ___ where a word is missing.")


def sentinel_tokens(count: int) -> list[str]:
    """Return T5's sentinel tokens.

    >>> sentinel_tokens(2)
    ['<extra_id_0>', '<extra_id_1>']
    """
    return [SENTINEL.format(number) for number in range(count)]


def token_fill(tokenizer: Tokenizer, id: int) -> BlankFill:
    """Return the fill of a single token."""
    token, text = str(tokenizer.backend.id_to_token(id)), tokenizer.decode([id])
    if tokenizer.kind == "char":
        return BlankFill(text or token, starts_word=False)
    if tokenizer.kind == "wordpiece":
        joins = token.startswith("##")
        return BlankFill(
            token.removeprefix("##"), joins_before=joins, starts_word=token[:1].isalnum()
        )
    if tokenizer.kind == "bpe-word":  # tokens mark the end of a word, not its beginning
        ends = token.endswith("</w>")
        return BlankFill(text.strip(), joins_after=not ends, starts_word=False)
    return BlankFill(text.strip(), joins_before=not token.startswith(("Ġ", "▁", "Ċ")))


def span_fill(tokenizer: Tokenizer, ids: Sequence[int]) -> BlankFill:
    """Return the fill of several tokens."""
    if not ids:
        return BlankFill("")
    first, last = token_fill(tokenizer, ids[0]), token_fill(tokenizer, ids[-1])
    text = tokenizer.decode(ids, skip_specials=True).strip().removeprefix("##")
    return BlankFill(text, first.joins_before, last.joins_after, first.starts_word)


def tokenize_words(tokenizer: Tokenizer, words: Sequence[str], *, spaced: bool) -> list[list[int]]:
    """Tokenize each word, after a space or at the beginning of a text."""
    context = tokenizer.encode("a") if spaced else []
    texts = [f"a {word}" if spaced else word for word in words]
    encodings = encode_batch(tokenizer.backend, texts)
    return [encoding.ids[len(context) :] for encoding in encodings]
