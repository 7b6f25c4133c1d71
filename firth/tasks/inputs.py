"""Input sequences: tokenized texts with special tokens around them.

Encoders get the special tokens of their tokenizer's family around a text or a pair; decoders get
BOS and EOS, with EOS between two texts (as in GPT-1, Radford et al. 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import tokenizers

from firth.inference.generation.special_tokens import as_list
from firth.models.config import LanguageModelConfig, ModelConfig
from firth.models.label_heads import LABEL_HEADS
from firth.tokenizers.special_tokens import (
    encode_one_token,
    special_tokens_around,
    with_special_tokens,
)
from firth.tokenizers.tokenizer import Tokenizer, encode_batch
from firth.utils.rng import Longs
from firth.utils.streams import bounded_batches

BATCH_TEXTS = 4096  # tokenized together
Span = tuple[int, int]  # of characters


class TokenizedText(NamedTuple):
    """A tokenized text."""

    tokens: Longs  # (L,)
    spans: tuple[Span, ...]  # (L,) characters of each token, or ()

    def part(self, begin: int, end: int) -> TokenizedText:
        """Slice tokens `begin` to `end`."""
        return TokenizedText(self.tokens[begin:end], self.spans[begin:end])


class FramedSequence(NamedTuple):
    """A sequence with special tokens, and the positions at which its texts begin."""

    tokens: Longs  # (L,)
    segments: Longs  # (L,) 0, and 1 for the second text of a pair
    first: int
    second: int


class TemplateSlot(NamedTuple):
    """One slot of an input template: a special token or a text."""

    text: int  # 0 or 1; -1: a special token
    segment: int
    token: int


@dataclass(frozen=True)
class InputTemplate:
    """Builds a model's input sequences, up to a maximum length."""

    tokenizer: Tokenizer
    config: LanguageModelConfig
    length: int
    encoder: InputTemplate | None = None  # of an encoder with its own tokenizer

    @property
    def source(self) -> InputTemplate:
        """The template of source texts: the encoder's own, if it has one."""
        return self.encoder or self

    def tokenize(self, texts: Sequence[str], *, offsets: bool = False) -> list[TokenizedText]:
        """Tokenize texts; with `offsets`, also return the character span of each token."""
        backend, found, is_open = self.tokenizer.backend, [], self.config.open_vocabulary
        for batch in bounded_batches(texts, len, max_items=BATCH_TEXTS):
            encodings = encode_batch(backend, batch, offsets=offsets or is_open)
            for text, made in zip(batch, encodings, strict=True):
                ids = self.tokenizer.open_ids(made, text) if is_open else made.ids
                spans = tuple(made.offsets) if offsets else ()
                found.append(TokenizedText(np.array(ids, dtype=np.int64), spans))
        return found

    def room(self, *, pair: bool = False) -> int:
        """The number of text tokens that fit into a sequence."""
        return max(1, self.length - sum(slot.text < 0 for slot in self._slots[pair]))

    def one(self, text: TokenizedText) -> FramedSequence:
        """Add special tokens to a text, truncating its end."""
        return self._framed((text.part(0, self.room()),))

    def two(self, first: TokenizedText, second: TokenizedText) -> FramedSequence:
        """Add special tokens to a pair of texts, truncating the longer one first."""
        room = self.room(pair=True)
        sizes = truncated_lengths(len(first.tokens), len(second.tokens), room)
        return self._framed((first.part(0, sizes[0]), second.part(0, sizes[1])))

    def _framed(self, texts: tuple[TokenizedText, ...]) -> FramedSequence:
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
        if not at:  # an empty text without special tokens
            tokens, segments = [np.array([self.config.pad_token_id or 0])], [np.zeros(1, np.int64)]
        return FramedSequence(np.concatenate(tokens), np.concatenate(segments), *begins)

    @cached_property
    def _slots(self) -> dict[bool, list[TemplateSlot]]:
        """The slots of a single text (False) and of a pair (True)."""
        return {pair: _template(self.tokenizer.backend, pair) for pair in (False, True)}


def task_tokenizer(config: LanguageModelConfig, tokenizer: Tokenizer, head: str) -> Tokenizer:
    """Return a tokenizer that adds the special tokens with which a task is fine-tuned.

    A decoder predicts labels of a text between BOS and EOS. A text that it learns to generate ends
    with EOS, and begins like a prompt. Other models keep the special tokens of their tokenizer.
    """
    if config.architecture != "decoder":
        return tokenizer
    before, _ = special_tokens_around(tokenizer)
    if head in LABEL_HEADS:
        before = as_list(config.bos_token_id)
    return with_special_tokens(tokenizer, before, as_list(config.eos_token_id))


def make_input_template(
    config: ModelConfig,
    tokenizer: Tokenizer,
    length: int,
    encoder_tokenizer: Tokenizer | None = None,
) -> InputTemplate:
    """Make the input template of a model; the encoder may have its own tokenizer."""
    if config.encoder is None or encoder_tokenizer is None:
        return InputTemplate(tokenizer, config, length)
    length_in = min(length, config.encoder.max_positions)
    source = InputTemplate(encoder_tokenizer, config.encoder, length_in)
    return InputTemplate(tokenizer, config, min(length, config.max_positions), source)


def _template(backend: tokenizers.Tokenizer, pair: bool) -> list[TemplateSlot]:
    """Find the special tokens around one text or two, by encoding texts of one token."""
    slots, text = [], 0
    if (one := encode_one_token(backend)) is None:
        return [TemplateSlot(i, 0, 0) for i in range(1 + pair)]
    whole = backend.post_process(one, one if pair else None, True)
    for id, segment, special in zip(
        whole.ids, whole.type_ids, whole.special_tokens_mask, strict=True
    ):
        slots.append(TemplateSlot(-1 if special else text, segment, id))
        text += not special
    return slots


def truncated_lengths(first: int, second: int, room: int) -> tuple[int, int]:
    """Compute the lengths of two texts after truncating the longer one until both fit.

    >>> truncated_lengths(10, 4, 20), truncated_lengths(10, 4, 8), truncated_lengths(10, 9, 8)
    ((10, 4), (4, 4), (4, 4))
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    return (room - second, second) if second <= half else (room - half, half)
