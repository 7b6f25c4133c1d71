"""Inputs, results and methods of filling blanks.

An encoder, or a decoder pre-trained with the hybrid objective (GPT-BERT, Charpentier and Samuel
2024), predicts one token per blank; an encoder-decoder, or a decoder pre-trained with a denoising
objective, generates spans of any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from firth.inference.infilling.blanks import BlankedText, find_blanks, sentinel_tokens
from firth.models.language_model import LanguageNetwork
from firth.models.transformer import max_input_length, max_text_length
from firth.objectives.registry import OBJECTIVES, infill_format
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError

Ids = tuple[int, ...]
MAX_SPAN_TOKENS = 16  # of one blank


@dataclass(frozen=True)
class FillCandidate:
    """A fill of one blank, its probability, and the filled text."""

    token: str
    score: float
    text: str


BlankCandidates = list[list[FillCandidate]]  # for each blank of a text


class FillOptions(TypedDict, total=False):
    """The number of candidates, and the only words to score."""

    top: int
    targets: Sequence[str] | str


@dataclass(frozen=True)
class FilledSentence:
    """A text with all its blanks filled, and its probability."""

    tokens: list[str]
    score: float
    text: str


@dataclass(frozen=True)
class FillResult:
    """Candidates for each blank, best first; for several blanks, also for all together."""

    text: str
    blanks: list[list[FillCandidate]]
    sentences: list[FilledSentence]

    def values(self) -> dict[str, Any]:
        """Return JSON values: a list of candidates, or one list per blank if there are several."""
        lists = [[asdict(candidate) for candidate in candidates] for candidates in self.blanks]
        if len(lists) == 1:
            return {"text": self.text, "predictions": lists[0]}
        sentences = [asdict(sentence) for sentence in self.sentences]
        return {"text": self.text, "predictions": lists, "sentences": sentences}


@dataclass(frozen=True)
class EncodedBlanks:
    """A tokenized text with blanks."""

    text: str
    blanks: BlankedText
    ids: Ids
    positions: Ids  # of the mask tokens, for the method `masks`


@dataclass(frozen=True, kw_only=True)
class BlankFiller:
    """A model that fills blanks by `masks`, `spans` (T5) or `whole` text (BART)."""

    network: LanguageNetwork
    tokenizer: Tokenizer
    method: str

    @property
    def shift(self) -> int:
        """1 for a decoder with masks, which predicts at the position before a token; else 0."""
        return int(self.network.config.architecture == "decoder" and self.method == "masks")

    @property
    def mark(self) -> str:
        """The model's mark of a blank."""
        if self.method == "spans":
            return sentinel_tokens(1)[0]
        return self.tokenizer.special_tokens["mask"]

    def encode(self, text: str) -> EncodedBlanks:
        """Tokenize a text with blanks; raise an error if it has none or is too long."""
        blanks = find_blanks(text, self.mark)
        if self.method == "spans" and len(blanks) >= len(self.tokenizer.sentinel_ids):
            limit = len(self.tokenizer.sentinel_ids) - 1
            raise UsageError(
                f"The text has {len(blanks)} blanks, but this model supports at most {limit}."
            )
        ids = self.encode_framed(self.with_own_marks(blanks))
        mask = self.tokenizer.special_ids.get("mask")
        positions = tuple(i for i, id in enumerate(ids) if id == mask and self.method == "masks")
        if self.method == "masks" and len(positions) != len(blanks):
            raise MismatchError(
                f"The tokenizer does not encode {self.mark} as the mask token: use a tokenizer "
                "that has it as a special token."
            )
        if self.shift and positions and positions[0] == 0:
            raise UsageError(
                "This model cannot fill a blank at the beginning of a text: put words before it."
            )
        return EncodedBlanks(text, blanks, ids, positions)

    def with_own_marks(self, blanks: BlankedText) -> str:
        """Return the text with the model's own mark in each blank."""
        spans = self.method == "spans"
        return blanks.with_marks(
            sentinel_tokens(len(blanks)) if spans else [self.mark] * len(blanks)
        )

    def encode_framed(self, text: str) -> Ids:
        """Tokenize a text with the special tokens the model expects."""
        config, end = self.network.config, self.network.config.eos_token_id
        if (self.method == "masks" and not self.shift) or self.method == "whole":
            ids = self.tokenizer.encode(text, specials=True)
        else:
            begin = config.bos_token_id if self.shift else None
            own = self.tokenizer.encode(text)
            ids = [id for id in (begin, *own, end) if id is not None]
        if len(ids) > self.max_length:
            raise UsageError(
                f"The text has {len(ids)} tokens, but the model's context is {self.max_length} "
                "tokens; shorten it."
            )
        return tuple(ids)

    @property
    def max_length(self) -> int:
        """The maximum number of input tokens; a decoder needs room for a span after them."""
        if self.method == "masks":
            return max_text_length(self.network)
        room = 0 if self.network.config.has_encoder else MAX_SPAN_TOKENS + 2
        return max_input_length(self.network) - room


def check_top(top: int) -> None:
    """Refuse a number of candidates below 1."""
    if not isinstance(top, int) or top < 1:
        raise UsageError("`top`, the number of candidates per blank, must be at least 1.")


def make_filler(
    network: LanguageNetwork, tokenizer: Tokenizer, *, objective: str | None = None
) -> BlankFiller:
    """Choose the method from the model's architecture and pre-training objective."""
    architecture, pretrained_as = network.config.architecture, infill_format(objective)
    if architecture == "decoder" and not pretrained_as:
        raise MismatchError(
            "A causal decoder cannot fill blanks, because it does not see the text after them. Use "
            "an encoder, an encoder-decoder or a decoder pre-trained with a hybrid or denoising "
            "objective; `firth generate` completes a text with this model."
        )
    if architecture == "encoder-decoder" and objective in OBJECTIVES and not pretrained_as:
        raise MismatchError(
            f"This encoder-decoder was pre-trained with {objective} and cannot fill blanks; "
            "`firth generate` completes a text with it."
        )
    if "language" not in network.heads:
        raise MismatchError(
            "This model has no language head, so it cannot fill blanks; use a model saved with its "
            "masked-language-model head."
        )
    has_mask, method = "mask" in tokenizer.special_ids, "masks"
    if architecture == "decoder" and pretrained_as == "spans":
        method = "spans"
    elif architecture == "encoder-decoder":
        regenerates = pretrained_as == "whole" and has_mask
        method = "spans" if tokenizer.sentinel_ids and not regenerates else "whole"
        if network.config.encoder is not None or (method == "whole" and not has_mask):
            raise MismatchError(
                "This encoder-decoder cannot fill blanks: its tokenizer has neither sentinels (T5) "
                "nor a mask token (BART), or its encoder and decoder come from different models."
            )
    elif not has_mask:
        raise MismatchError("This model's tokenizer has no mask token, so it cannot fill blanks.")
    return BlankFiller(network=network, tokenizer=tokenizer, method=method)
