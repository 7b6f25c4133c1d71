"""Incremental detokenization: text of generated tokens, stop strings and streaming."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from firth.tokenizers.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # how an incomplete character is decoded
CONTEXT_TOKENS = 16  # previous tokens that determine how the following ones are decoded
WINDOW_TOKENS = 4 * CONTEXT_TOKENS  # last tokens of a stream that are decoded again
BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # of SentencePiece


@dataclass(frozen=True, kw_only=True)
class Detokenizer:
    """Decodes the tokens generated after a prompt."""

    tokenizer: Tokenizer
    prompt: tuple[int, ...] = ()  # the prompt's tokens, or the last of them
    hidden: frozenset[int] = frozenset()  # special tokens that are not shown

    def text(self, tokens: Sequence[int], start: int = 0) -> str:
        """Return the text of the tokens from `start` on, with its leading space.

        It is the text to append to the prompt and the tokens before.
        """
        before = tokens[max(0, start - CONTEXT_TOKENS) : start]
        context = [*self.prompt[-CONTEXT_TOKENS:], *self._shown(before)][-CONTEXT_TOKENS:]
        return _decode_after(self.tokenizer, context, self._shown(tokens[start:]))

    def _shown(self, tokens: Sequence[int]) -> list[int]:
        return [id for id in tokens if id not in self.hidden]

    def piece(self, tokens: Sequence[int], token: int) -> str:
        """Return the text that one more token adds, or its name in the vocabulary if none."""
        context = [*self.prompt[-CONTEXT_TOKENS:], *tokens[-CONTEXT_TOKENS:]][-CONTEXT_TOKENS:]
        text = _decode_after(self.tokenizer, context, [token])
        name = str(self.tokenizer.backend.id_to_token(token))
        return name if not text or REPLACEMENT in text or token in self.hidden else text

    def is_byte(self, token: int) -> bool:
        """Return whether a token is one byte: its text depends on the bytes that follow."""
        return bool(BYTE_TOKEN.fullmatch(self.tokenizer.backend.id_to_token(token) or ""))


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
    tail = detokenizer.text(tokens, max(0, len(tokens) - longest - 4))
    if not any(stop in tail for stop in stops):
        return False
    text = detokenizer.text(tokens)
    return any(stop in text for stop in stops)


class TextStreamer:
    """Yields text as tokens arrive, only as far as later tokens cannot change it.

    Only the last tokens are decoded, so the time of a token does not grow with the text.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self.detokenizer, self.stops = detokenizer, stops
        self.tokens: list[int] = []
        self._start = 0  # the window: all text of the tokens before was streamed
        self._streamed = ""  # text of the window
        self._max_window = WINDOW_TOKENS

    def add(self, token: int) -> str:
        """Add a token and return the new text that is final."""
        self.tokens.append(token)
        # One invalid byte makes all bytes of a run invalid, so a run must end first.
        if self.detokenizer.is_byte(token):
            return ""
        text = self.detokenizer.text(self.tokens, self._start)
        if (final := truncate_at_stop(text, self.stops)) == text:
            final = text.rstrip(REPLACEMENT)
            final = final[: len(final) - partial_stop_length(final, self.stops)]
        new = self._new_text(final)
        if len(self.tokens) - self._start > self._max_window:
            self._move_window(text)
        return new

    def finish(self) -> str:
        """Return the remaining text."""
        text = self.detokenizer.text(self.tokens, self._start)
        return self._new_text(truncate_at_stop(text, self.stops))

    def _new_text(self, final: str) -> str:
        """Return the part that was not streamed yet."""
        if not final.startswith(self._streamed):
            return ""
        new, self._streamed = final[len(self._streamed) :], final
        return new

    def _move_window(self, text: str) -> None:
        """Drop tokens whose text was streamed, if those after them then have the same text.

        If no place among the last tokens is between two characters, the window grows.
        """
        for start in range(len(self.tokens) - CONTEXT_TOKENS, len(self.tokens)):
            if self.detokenizer.is_byte(self.tokens[start - 1]):
                continue
            dropped = self.detokenizer.text(self.tokens[:start], self._start)
            if dropped.endswith(REPLACEMENT):
                continue
            kept = self.detokenizer.text(self.tokens, start)
            if dropped + kept == text and self._streamed.startswith(dropped):
                self._start, self._streamed = start, self._streamed[len(dropped) :]
                self._max_window = WINDOW_TOKENS
                return
        self._max_window *= 2


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix that may be the beginning of a stop string.

    >>> [partial_stop_length(text, ["end!"]) for text in ("the e", "en", "The end")]
    [1, 2, 3]
    """
    return max((_partial_length(text, stop) for stop in stops), default=0)


def _partial_length(text: str, stop: str) -> int:
    sizes = range(min(len(stop) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
