"""From texts to the sequences a network reads: tokens, and the special ones around them.

Encoders get what their tokenizer's family puts around a text or a pair; decoders, the tokens that
begin and end a document, with the end token between two texts (as GPT-1, Radford et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tokenizers

from firth.draws import Longs
from firth.models.config import ModelConfig
from firth.text.tokenizer import Tokenizer

AT_ONCE = 4096  # texts that are tokenised together
Span = tuple[int, int]  # of characters


class Text(NamedTuple):
    """A text in tokens."""

    tokens: Longs  # (L,)
    spans: tuple[Span, ...]  # (L,) or none

    def part(self, begin: int, end: int) -> Text:
        """Tokens `begin` to `end`."""
        return Text(self.tokens[begin:end], self.spans[begin:end])


class Framed(NamedTuple):
    """A sequence, and where its texts begin in it."""

    tokens: Longs  # (L,)
    segments: Longs  # (L,) 0, and 1 for the second text of a pair
    first: int
    second: int


class Slot(NamedTuple):
    """What stands at one place of a framed sequence: a special token, or a text."""

    text: int  # 0 or 1; -1: the special token
    segment: int
    token: int


@dataclass(frozen=True)
class Frame:
    """How a model's sequences are made, and how long they may be."""

    tokenizer: Tokenizer
    config: ModelConfig
    length: int
    reader: Frame | None = None  # of what an encoder reads, with a tokenizer of its own

    @property
    def source(self) -> Frame:
        """How what is read is framed."""
        return self.reader or self

    def texts(self, texts: Sequence[str], *, places: bool = False) -> list[Text]:
        """Tokenise many texts; with `places`, say which characters each token stands for."""
        backend, found = self.tokenizer.backend, []
        encode = backend.encode_batch if places else backend.encode_batch_fast
        for begin in range(0, len(texts), AT_ONCE):
            for made in encode(list(texts[begin : begin + AT_ONCE]), add_special_tokens=False):
                spans = tuple(made.offsets) if places else ()
                found.append(Text(np.array(made.ids, dtype=np.int64), spans))
        return found

    def room(self, *, pair: bool = False) -> int:
        """How many tokens of text fit into a sequence."""
        return max(1, self.length - sum(slot.text < 0 for slot in self._slots[pair]))

    def one(self, text: Text) -> Framed:
        """A text, framed; what does not fit is cut off its end."""
        return self._framed((text.part(0, self.room()),))

    def two(self, first: Text, second: Text) -> Framed:
        """A pair, framed; what does not fit is cut off the longer one, token by token."""
        room = self.room(pair=True)
        sizes = shortened(len(first.tokens), len(second.tokens), room)
        return self._framed((first.part(0, sizes[0]), second.part(0, sizes[1])))

    def _framed(self, texts: tuple[Text, ...]) -> Framed:
        tokens: list[Longs] = []
        segments: list[Longs] = []
        begins, at = [0, 0], 0
        for slot in self._slots[len(texts) == 2]:
            special = np.array([slot.token], dtype=np.int64)
            part = special if slot.text < 0 else texts[slot.text].tokens
            if slot.text >= 0:
                begins[slot.text] = at
            tokens.append(part)
            segments.append(np.full(len(part), slot.segment, dtype=np.int64))
            at += len(part)
        if not at:  # an empty text, and nothing to frame it with
            tokens, segments = [np.array([self.config.padding_id or 0])], [np.zeros(1, np.int64)]
        return Framed(np.concatenate(tokens), np.concatenate(segments), *begins)

    @cached_property
    def _slots(self) -> dict[bool, list[Slot]]:
        """What a single text, and a pair, are framed with."""
        config = self.config
        if config.architecture != "decoder":
            return {pair: _template(self.tokenizer.backend, pair) for pair in (False, True)}
        begin = [Slot(-1, 0, config.begin_id)] if config.begin_id is not None else []
        end = [Slot(-1, 0, config.end_id)] if config.end_id is not None else []
        single = [*begin, Slot(0, 0, 0), *end]
        return {False: single, True: [*single, Slot(1, 0, 0), *end]}


def make_frame(
    config: ModelConfig, tokenizer: Tokenizer, length: int, reader: Tokenizer | None = None
) -> Frame:
    """How sequences are made for a model; `reader`: the tokenizer of an encoder with its own."""
    if config.reader is None or reader is None:
        return Frame(tokenizer, config, length)
    read = Frame(reader, config.reader, min(length, config.reader.context))
    return Frame(tokenizer, config, min(length, config.context), read)


def _template(backend: tokenizers.Tokenizer, pair: bool) -> list[Slot]:
    """What a tokenizer puts around one text or two, seen on texts of one token."""
    probe = backend.encode("a", add_special_tokens=False)
    probe.truncate(1)
    framed = backend.post_process(probe, probe if pair else None, True)
    slots, text = [], 0
    for id, segment, special in zip(
        framed.ids, framed.type_ids, framed.special_tokens_mask, strict=True
    ):
        slots.append(Slot(-1 if special else text, segment, id))
        text += not special
    return slots


def shortened(first: int, second: int, room: int) -> tuple[int, int]:
    """The sizes of two texts when the longer one gives way until both fit.

    >>> shortened(10, 4, 20), shortened(10, 4, 8), shortened(10, 9, 8)
    ((10, 4), (4, 4), (4, 4))
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    return (room - second, second) if second <= half else (room - half, half)
