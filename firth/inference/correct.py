"""Correct words that are unlikely where they stand: spelling, and words mistaken for another.

The noisy channel (Kernighan, Church and Gale 1990): someone meant a word, which the model finds
more or less likely between the others, and wrote it with some edits, each of which is unlikely.

    log P(meant | context) - EDIT * edits   against   log P(written | context)

A correction is proposed where the first is larger by MARGIN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from math import exp
from typing import Any, NamedTuple

from firth.errors import MismatchError
from firth.inference.filler import Filler, Ids
from firth.inference.lexicon import Lexicon, Near, make_lexicon
from firth.inference.rows import Asked, scores

EDIT = 6.0  # nats that an edit costs
MARGIN = 2.0  # nats by which a correction must be better than what is there
LEAST = -30.0  # the logarithm of the probability of what the vocabulary cannot spell
WORD = re.compile(r"(?<![\w'’-])[^\W\d_]{2,}(?![\w'’-])")


@dataclass(frozen=True)
class Correction:
    """A word, what was probably meant, and how likely both are where it stands."""

    word: str
    correction: str
    begin: int  # in the text, counted in characters
    end: int
    edits: int
    score: float
    was: float
    gain: float  # nats by which the correction is better, what its edits cost deducted


@dataclass(frozen=True)
class Corrected:
    """A text with the corrections that are proposed."""

    text: str
    corrected: str
    corrections: list[Correction]

    def values(self) -> dict[str, Any]:
        """The corrections as plain JSON values."""
        return asdict(self)


class Doubt(NamedTuple):
    """A word that others are spelt almost like, and what a model is to be asked of it."""

    begin: int
    end: int
    near: list[Near]
    asked: list[Asked]  # what may stand there; then each token of what does, if it has several


@dataclass(frozen=True)
class Corrector:
    """A model that fills blanks, and the words it knows."""

    filler: Filler

    @cached_property
    def behind_space(self) -> Lexicon:
        """The words that can stand within a text."""
        return make_lexicon(self.filler.tokenizer, spaced=True)

    @cached_property
    def at_beginning(self) -> Lexicon:
        """The words that can stand at its beginning."""
        return make_lexicon(self.filler.tokenizer, spaced=False)

    def doubts(self, text: str) -> list[Doubt]:
        """The words of a text that might be meant to be others."""
        found = []
        self.filler.frame(text)  # a text that is too long is refused
        for match in WORD.finditer(text):
            begin, end = match.span()
            lexicon = self.behind_space if begin else self.at_beginning
            near = lexicon.near(match.group())
            asked = self._asked(text, begin, end, near) if near else []
            if asked:
                found.append(Doubt(begin, end, near, asked))
        return found

    def _asked(self, text: str, begin: int, end: int, near: Sequence[Near]) -> list[Asked]:
        """One blank for a word of the vocabulary; as many blanks as what is there has tokens.

        Those are asked for from the left, each given the ones before it.
        """
        tokenizer, shift = self.filler.tokenizer, self.filler.shift
        mask = tokenizer.special_ids["mask"]
        blank = self.filler.frame(f"{text[:begin]}{self.filler.mark}{text[end:]}")
        there = self.filler.frame(text)
        place = blank.index(mask)
        behind = len(blank) - place - 1
        own = there[place : len(there) - behind]
        same = there[:place] == blank[:place] and there[len(there) - behind :] == blank[place + 1 :]
        if not same or not own or place < shift:
            return []
        candidates = [word.id for word in near]
        if len(own) == 1:
            candidates.append(own[0])
        asked = [Asked(blank, [place - shift] * len(candidates), candidates)]
        for i in range(len(own) if len(own) > 1 else 0):
            at = place + i
            hidden: Ids = (*there[:at], *[mask] * (len(own) - i), *blank[place + 1 :])
            asked.append(Asked(hidden, [at - shift], own[i : i + 1]))
        return asked


def make_corrector(filler: Filler) -> Corrector:
    """A model that corrects texts: one that is asked for the token of each blank."""
    if filler.way != "masks":
        raise MismatchError(
            "An encoder-decoder writes spans of any length; to correct words takes an encoder with "
            "a mask, or a decoder pre-trained with the hybrid objective."
        )
    found = Corrector(filler)
    if not found.behind_space.words:
        raise MismatchError(
            "No word is a single token to this model, so it has no words to correct with."
        )
    return found


def correct_all(
    corrector: Corrector, texts: Sequence[str], doubts: Sequence[Sequence[Doubt]]
) -> list[Corrected]:
    """The corrections of several texts, whose words were looked at one by one."""
    asked = [doubt.asked for own in doubts for doubt in own]
    unknown = corrector.filler.tokenizer.unknown_id
    answers = scores(corrector.filler.network, chain.from_iterable(asked), both_ways=True)
    corrected = []
    for text, own in zip(texts, doubts, strict=True):
        found = []
        for doubt in own:
            said = [next(answers).logs.tolist() for _ in doubt.asked]
            word = text[doubt.begin : doubt.end]
            spelt = all(unknown not in asked.targets for asked in doubt.asked)
            found.append(_judged(word, doubt, said, spelt))
        corrections = [correction for correction in found if correction is not None]
        corrected.append(Corrected(text, _applied(text, corrections), corrections))
    return corrected


def _judged(
    word: str, doubt: Doubt, said: Sequence[Sequence[float]], spelt: bool
) -> Correction | None:
    """The best correction of a word, if it is clearly better."""
    first, *rest = said
    was = max(LEAST, sum(chain.from_iterable(rest)) if rest else first[-1]) if spelt else LEAST
    ranked = [
        (log - EDIT * near.edits, log, near) for log, near in zip(first, doubt.near, strict=False)
    ]
    best, log, near = max(ranked, key=lambda row: row[0])
    gain = best - was
    if gain < MARGIN:
        return None
    return Correction(
        word=word,
        correction=in_the_case_of(word, near.word),
        begin=doubt.begin,
        end=doubt.end,
        edits=near.edits,
        score=exp(log),
        was=exp(was),
        gain=gain,
    )


def in_the_case_of(word: str, other: str) -> str:
    """Another word in capitals where a word has them.

    >>> [in_the_case_of(word, "the") for word in ("teh", "Teh", "TEH")]
    ['the', 'The', 'THE']
    """
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def _applied(text: str, corrections: Sequence[Correction]) -> str:
    parts, at = [], 0
    for found in corrections:
        parts += [text[at : found.begin], found.correction]
        at = found.end
    return "".join([*parts, text[at:]])
