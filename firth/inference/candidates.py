"""How likely each of some answers is at the place that a prompt leaves for it.

A decoder is asked how it goes on; an encoder-decoder, what it writes when it has read the prompt
(or, at a blank, what its sentinel stands for); a masked model, for the tokens of an answer, all of
which are hidden. Each of them comes down to rows with places that are asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth.adapt.prompts import reading_room, room, room_in
from firth.draws import Floats
from firth.errors import MismatchError, Misuse
from firth.inference.framing import around_prompt, around_text, given
from firth.inference.rows import Asked, Score, scores
from firth.models.transformer import Transformer
from firth.text.tokenizer import Tokenizer

# What stands in a text's place when there is no text (Zhao et al. 2021, section 5).
CONTENT_FREE = ("N/A", "", "[MASK]")


@dataclass(frozen=True)
class Speaker:
    """A model as it is prompted."""

    network: Transformer
    tokenizer: Tokenizer
    reader: Tokenizer | None = None  # of an encoder with a vocabulary of its own
    cloze: bool = False  # it fills blanks: an encoder, or a decoder that has learned to
    taught: bool = False  # it learned to write, with texts as the tokenizer frames them

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind what is read."""
        config = self.network.config
        if not self.cloze:
            return around_prompt(config, self.tokenizer, self.reader, taught=self.taught)
        if config.has_encoder:
            return around_text(self.tokenizer)
        return given(config.begin_id), given(config.end_id)

    @property
    def written_first(self) -> list[int]:
        """What a decoder behind an encoder writes before any text (BART's <s>)."""
        return self.around[0] if self.reader is None else []

    @property
    def sentinel(self) -> int | None:
        """What a blank is written as for an encoder-decoder that learned to fill them (T5)."""
        ids = self.tokenizer.sentinel_ids if self.reader is None else []
        return ids[0] if ids else None

    @property
    def behind(self) -> bool:
        """Whether an encoder reads the prompt, and a decoder behind it writes the answer."""
        return self.network.config.architecture == "encoder-decoder"

    @property
    def room(self) -> int:
        """How many tokens it reads."""
        return reading_room(self.network) if self.behind else room(self.network)

    def read(self, before: str, after: str = "", *, blank: bool = False) -> list[int]:
        """What an encoder-decoder reads of a prompt; with `blank`, a sentinel where it breaks off.

        What does not fit is left out at its beginning.
        """
        own, (left, right) = self.reader or self.tokenizer, self.around
        ids = own.encode(before.rstrip(" "))
        if blank and self.sentinel is not None:
            ids = [*ids, self.sentinel, *own.encode(after)]
        kept = max(0, self.room - len(left) - len(right))
        return [*left, *ids[max(0, len(ids) - kept) :], *right]

    def _begun(self, ids: Sequence[int], written: int) -> list[int]:
        left, config = self.around[0], self.network.config
        # Where a text begins with nothing, the end of the one before it is what stands there.
        left = left or ([] if ids else given(config.end_id))
        if not left and not ids:
            raise Misuse("There is no prompt: give a text, an example or an instruction.")
        kept = max(1, self.room - len(left) - written)
        return [*left, *ids[max(0, len(ids) - kept) :]]

    def size(self, before: str, after: str, answers: Sequence[str]) -> int:
        """How many tokens a prompt takes with the longest of some answers."""
        tokens = self.tokenizer if self.reader is None else self.reader
        own = len(tokens.encode(before.rstrip(" "))) + sum(map(len, self.around))
        own += len(tokens.encode(after)) if self.behind or self.cloze else 0
        if self.behind:
            return own + 1
        words = (len(self.tokenizer.encode(f" {answer}")) for answer in answers)
        return own + max(words, default=0)

    def ask(self, before: str, after: str, answer: str, *, blank: bool = False) -> Asked:
        """The row that says how likely an answer is between what stands before it and behind."""
        stem = before.rstrip(" ")
        gap = " " if stem != before else ""
        if self.behind:
            return self._written(before, after, answer, blank)
        ids, wanted = joined(self.tokenizer, stem, f"{gap}{answer}")
        if not wanted:
            raise MismatchError(f"This model's tokenizer has no token for the answer {answer!r}.")
        if self.cloze:
            return self._hidden(ids, wanted, answer, after)
        row = self._begun(ids, len(wanted) - 1)
        places = range(len(row) - 1, len(row) - 1 + len(wanted))
        return Asked((*row, *wanted[:-1]), places, wanted)

    def _written(self, before: str, after: str, answer: str, blank: bool) -> Asked:
        """What an encoder reads, and what the decoder behind it is to write."""
        hole = [self.sentinel] if blank and self.sentinel is not None else None
        lead = [self.network.config.start_id or 0, *(hole or self.written_first)]
        wanted = self.tokenizer.encode(answer)[: room_in(self.network.stack) - len(lead)]
        if not wanted:
            raise MismatchError(f"This model's tokenizer has no token for the answer {answer!r}.")
        places = range(len(lead) - 1, len(lead) - 1 + len(wanted))
        source = tuple(self.read(before, after, blank=blank))
        return Asked((*lead, *wanted[:-1]), places, wanted, source)

    def _hidden(self, ids: list[int], wanted: list[int], answer: str, after: str) -> Asked:
        """A sentence in which every token of the answer is hidden."""
        mask = self.tokenizer.special_ids["mask"]
        _, rest = joined(self.tokenizer, answer, after) if after else ([], [])
        left, right = self.around
        fixed = len(left) + len(wanted) + len(right)
        rest = rest[: max(0, self.room - fixed)]
        kept = max(0, self.room - fixed - len(rest))
        row = [*left, *ids[max(0, len(ids) - kept) :]]
        # A decoder that fills blanks is asked for a token at the place before it.
        first = len(row) - int(self.network.config.has_decoder)
        if first < 0:
            raise Misuse("A blank at the very beginning cannot be asked for: put words before it.")
        whole = (*row, *[mask] * len(wanted), *rest, *right)
        return Asked(whole, range(first, first + len(wanted)), wanted)

    def scores(self, asked: Iterator[Asked]) -> Iterator[Score]:
        """How likely the answers are that rows ask for, in their order."""
        return scores(self.network, asked, both_ways=self.cloze)


def joined(tokenizer: Tokenizer, before: str, words: str) -> tuple[list[int], list[int]]:
    """The tokens of a text, and those that words have behind it.

    Where words change the tokens before them, they are taken as they are on their own.
    """
    first, both = tokenizer.encode(before), tokenizer.encode(before + words)
    if both[: len(first)] == first and len(both) > len(first):
        return first, both[len(first) :]
    return first, tokenizer.encode(words)


def log_shares(logs: Floats) -> Floats:
    """Logarithms of the shares that some answers have, if one of them must be right: (…, K).

    >>> np.exp(log_shares(np.log([0.02, 0.06]))).round(2).tolist()
    [0.25, 0.75]
    """
    shifted = logs - logs.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def calibrated(logs: Floats, free: Floats) -> Floats:
    """Log-shares of answers (K,) divided by what they have without a text, (F, K) for each of F.

    Contextual calibration (Zhao et al. 2021, section 5: W is the inverse of the content-free
    shares, b is 0). Of answers to choose from it is their pointwise mutual information with the
    text (Holtzman et al. 2021), which orders them alike.

    >>> often = np.log([[0.8, 0.2], [0.6, 0.4]])  # the first word is likelier whatever the text
    >>> np.exp(calibrated(np.log([0.6, 0.4]), often)).round(3).tolist()
    [0.391, 0.609]
    """
    usual = np.exp(log_shares(free)).mean(axis=0)
    return log_shares(log_shares(logs) - np.log(np.maximum(usual, np.finfo(float).tiny)))
