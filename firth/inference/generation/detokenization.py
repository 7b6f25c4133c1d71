"""Incremental detokenization: text of generated tokens, stop strings and streaming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firth.tokenizers.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # how an incomplete character is decoded
CONTEXT_TOKENS = 16  # previous tokens that determine how the following ones are decoded
# Last words of a text that a later token may still change: WordPiece joins "do n't".
UNSTABLE_WORDS = {"wordpiece": 3}


@dataclass(frozen=True, kw_only=True)
class Detokenizer:
    """Decodes the tokens generated after a prompt."""

    tokenizer: Tokenizer
    prompt: tuple[int, ...] = ()  # the prompt's tokens, or the last of them
    hidden: frozenset[int] = frozenset()  # special tokens that are not shown

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text to append to the prompt, with its leading space."""
        shown = [id for id in tokens if id not in self.hidden]
        return _decode_after(self.tokenizer, self.prompt[-CONTEXT_TOKENS:], shown)

    def piece(self, tokens: Sequence[int], token: int) -> str:
        """Return the text that one more token adds, or its name in the vocabulary if none."""
        context = [*self.prompt[-CONTEXT_TOKENS:], *tokens[-CONTEXT_TOKENS:]][-CONTEXT_TOKENS:]
        text = _decode_after(self.tokenizer, context, [token])
        name = str(self.tokenizer.backend.id_to_token(token))
        return name if not text or REPLACEMENT in text or token in self.hidden else text

    def tail(self, tokens: Sequence[int], count: int) -> str:
        """Return at least the text of the last `count` tokens."""
        if len(tokens) <= count + CONTEXT_TOKENS:
            return self.text(tokens)
        shown = [id for id in tokens[-count - CONTEXT_TOKENS :] if id not in self.hidden]
        return _decode_after(self.tokenizer, shown[:CONTEXT_TOKENS], shown[CONTEXT_TOKENS:])


def _decode_after(tokenizer: Tokenizer, context: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text of tokens as it reads after a context."""
    head = tokenizer.decode(context) if context else ""
    whole = tokenizer.decode([*context, *tokens])
    return whole[len(head) :] if whole.startswith(head) else tokenizer.decode(tokens)


def truncate_at_stop(text: str, stops: Sequence[str]) -> str:
    """Cut a text before its first stop string.

    >>> truncate_at_stop("One. Two! Three.", ["!", "Th"]), truncate_at_stop("One", ["!"])
    ('One. Two', 'One')
    """
    positions = [position for stop in stops if (position := text.find(stop)) >= 0]
    return text[: min(positions, default=len(text))]


def contains_stop(detokenizer: Detokenizer, tokens: Sequence[int], stops: Sequence[str]) -> bool:
    """Return whether the last token completes a stop string."""
    # Every token has at least one byte.
    longest = max(len(stop.encode("utf-8", "replace")) for stop in stops)
    if not any(stop in detokenizer.tail(tokens, longest + 4) for stop in stops):
        return False
    text = detokenizer.text(tokens)
    return any(stop in text for stop in stops)


class TextStreamer:
    """Yields text as tokens arrive, only as far as later tokens cannot change it."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self.detokenizer, self.stops = detokenizer, stops
        self.tokens: list[int] = []
        self.streamed = ""

    def add(self, token: int) -> str:
        """Add a token and return the new text that is final."""
        self.tokens.append(token)
        text = self.detokenizer.text(self.tokens)
        if (final := truncate_at_stop(text, self.stops)) == text:
            final = text.rstrip(REPLACEMENT)
            unstable = UNSTABLE_WORDS.get(self.detokenizer.tokenizer.kind, 0)
            final = _without_last_words(final, unstable)
            final = final[: len(final) - partial_stop_length(final, self.stops)]
        return self._new_text(final)

    def finish(self) -> str:
        """Return the remaining text."""
        return self._new_text(truncate_at_stop(self.detokenizer.text(self.tokens), self.stops))

    def _new_text(self, final: str) -> str:
        """Return the part that was not streamed yet."""
        if not final.startswith(self.streamed):
            return ""
        new, self.streamed = final[len(self.streamed) :], final
        return new


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix that may be the beginning of a stop string.

    >>> [partial_stop_length(text, ["end!"]) for text in ("the e", "en", "The end")]
    [1, 2, 3]
    """
    return max((_partial_length(text, stop) for stop in stops), default=0)


def _partial_length(text: str, stop: str) -> int:
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)


def _without_last_words(text: str, count: int) -> str:
    for _ in range(count):
        text = text[: max(0, text.rstrip().rfind(" "))]
    return text
