"""From tokens that are being written to text: where it stops, and how much of it is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firth.text.tokenizer import Tokenizer

HALF = "\ufffd"  # what part of a character is spelt as
BEFORE = 16  # tokens that are enough to know how what follows them is spelt
# Words at the end of a text that a later token may still change: WordPiece puts "do n't" together.
LOOSE = {"wordpiece": 3}


@dataclass(frozen=True, kw_only=True)
class Speller:
    """How the tokens behind a prompt are spelt."""

    tokenizer: Tokenizer
    before: tuple[int, ...] = ()  # the tokens they stand behind, or the last of them
    hidden: frozenset[int] = frozenset()  # tokens that only say where a text begins or ends

    def text(self, tokens: Sequence[int]) -> str:
        """What is to be put behind the prompt: with a space in front, if there is one."""
        said = [id for id in tokens if id not in self.hidden]
        return _behind(self.tokenizer, self.before[-BEFORE:], said)

    def piece(self, tokens: Sequence[int], token: int) -> str:
        """What one more token adds; where that is no text, its name in the vocabulary."""
        text = _behind(self.tokenizer, [*self.before, *tokens][-BEFORE:], [token])
        name = str(self.tokenizer.backend.id_to_token(token))
        return name if not text or HALF in text or token in self.hidden else text

    def tail(self, tokens: Sequence[int], count: int) -> str:
        """At least what the last so many tokens are, and a little before that."""
        if len(tokens) <= count + BEFORE:
            return self.text(tokens)
        said = [id for id in tokens[-count - BEFORE :] if id not in self.hidden]
        return _behind(self.tokenizer, said[:BEFORE], said[BEFORE:])


def _behind(tokenizer: Tokenizer, before: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of tokens, as it is spelt behind others."""
    head = tokenizer.decode(before) if before else ""
    whole = tokenizer.decode([*before, *tokens])
    return whole[len(head) :] if whole.startswith(head) else tokenizer.decode(tokens)


def cut(text: str, stops: Sequence[str]) -> str:
    """What stands before the first of some texts.

    >>> cut("One. Two! Three.", ["!", "Th"]), cut("One", ["!"])
    ('One. Two', 'One')
    """
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places, default=len(text))]


def stops_in(speller: Speller, tokens: Sequence[int], stops: Sequence[str]) -> bool:
    """Whether one of some texts is there now that the last token is."""
    # No token is shorter than a byte.
    longest = max(len(stop.encode("utf-8", "replace")) for stop in stops)
    if not any(stop in speller.tail(tokens, longest + 4) for stop in stops):
        return False
    text = speller.text(tokens)
    return any(stop in text for stop in stops)


class Stream:
    """A text that is told as it comes, but nothing before it is certain."""

    def __init__(self, speller: Speller, stops: Sequence[str] = ()) -> None:
        self.speller, self.stops = speller, stops
        self.tokens: list[int] = []
        self.told = ""

    def add(self, token: int) -> str:
        """What has become certain with one more token."""
        self.tokens.append(token)
        text = self.speller.text(self.tokens)
        if (known := cut(text, self.stops)) == text:
            known = text.rstrip(HALF)
            known = _without_words(known, LOOSE.get(self.speller.tokenizer.kind, 0))
            known = known[: len(known) - longest_open(known, self.stops)]
        return self._tell(known)

    def finish(self) -> str:
        """The rest."""
        return self._tell(cut(self.speller.text(self.tokens), self.stops))

    def _tell(self, known: str) -> str:
        """What of this was not told yet."""
        if not known.startswith(self.told):
            return ""
        new, self.told = known[len(self.told) :], known
        return new


def longest_open(text: str, stops: Sequence[str]) -> int:
    """How much at the end of a text may be the beginning of one of some others.

    >>> [longest_open(text, ["end!"]) for text in ("the e", "The en", "The end")]
    [1, 2, 3]
    """
    sizes = (size for stop in stops for size in range(len(stop) - 1, 0, -1))
    return max((size for size in sizes if _begins(text[-size:], stops)), default=0)


def _begins(end: str, stops: Sequence[str]) -> bool:
    return bool(end) and any(stop.startswith(end) for stop in stops)


def _without_words(text: str, count: int) -> str:
    """A text without its last words."""
    for _ in range(count):
        text = text[: max(0, text.rstrip().rfind(" "))]
    return text
