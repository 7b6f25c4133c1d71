"""Spelling correction with a masked language model: misspelt and confused words.

The noisy channel (Kernighan, Church and Gale 1990): someone meant a word, which has a probability
in its context, and wrote it with some edits, each of which has a cost.

    log P(meant | context) - EDIT_COST * edits   against   log P(written | context)

A correction is proposed if the first is larger by MIN_GAIN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from math import exp
from typing import Any, NamedTuple

from firth.inference.infilling.fill_methods import BlankFiller, Ids
from firth.inference.infilling.similar_words import SimilarWord, WordList, build_word_list
from firth.inference.scoring.token_scoring import ScoringRequest, score_requests
from firth.utils.errors import MismatchError

EDIT_COST = 6.0  # nats per edit
MIN_GAIN = 2.0  # nats
MIN_LOG_PROB = -30.0  # for words that the vocabulary cannot spell
WORD = re.compile(r"(?<![\w'’-])[^\W\d_]{2,}(?![\w'’-])")


@dataclass(frozen=True)
class Correction:
    """A word and its proposed correction, with their probabilities in context."""

    word: str
    correction: str
    begin: int  # characters in the text
    end: int
    edits: int
    score: float
    was: float
    gain: float  # nats by which the correction is better, after the cost of its edits


@dataclass(frozen=True)
class CorrectedText:
    """A text with its proposed corrections."""

    text: str
    corrected: str
    corrections: list[Correction]

    def values(self) -> dict[str, Any]:
        """Return the corrections as JSON values."""
        return asdict(self)


class SuspectWord(NamedTuple):
    """A word with similarly spelt words, and the requests that score them."""

    begin: int
    end: int
    similar: list[SimilarWord]
    requests: list[ScoringRequest]  # all candidates; then each token of a word of several tokens


@dataclass(frozen=True)
class SpellingCorrector:
    """A masked language model and the words of its vocabulary."""

    filler: BlankFiller

    @cached_property
    def words_after_space(self) -> WordList:
        """The vocabulary's words inside a text."""
        return build_word_list(self.filler.tokenizer, spaced=True)

    @cached_property
    def words_at_beginning(self) -> WordList:
        """The vocabulary's words at the beginning of a text."""
        return build_word_list(self.filler.tokenizer, spaced=False)

    def find_suspects(self, text: str) -> list[SuspectWord]:
        """Find the words of a text that have similarly spelt words."""
        suspects = []
        self.filler.encode_framed(text)  # raises an error for a text that is too long
        for match in WORD.finditer(text):
            begin, end = match.span()
            words = self.words_after_space if begin else self.words_at_beginning
            similar = words.similar(match.group())
            requests = self._requests(text, begin, end, similar) if similar else []
            if requests:
                suspects.append(SuspectWord(begin, end, similar, requests))
        return suspects

    def _requests(
        self, text: str, begin: int, end: int, similar: Sequence[SimilarWord]
    ) -> list[ScoringRequest]:
        """Mask the word with one mask to score single tokens, and with as many as it has tokens.

        The latter are scored from left to right, each given the previous ones.
        """
        tokenizer, shift = self.filler.tokenizer, self.filler.shift
        mask = tokenizer.special_ids["mask"]
        masked = self.filler.encode_framed(f"{text[:begin]}{self.filler.mark}{text[end:]}")
        original = self.filler.encode_framed(text)
        position = masked.index(mask)
        before, after = masked[:position], masked[position + 1 :]
        word_end = len(original) - len(after)
        word = original[position:word_end]
        same_context = original[:position] == before and original[word_end:] == after
        if not same_context or not word or position < shift:
            return []
        candidates = [similar_word.id for similar_word in similar]
        if len(word) == 1:
            candidates.append(word[0])
        requests = [ScoringRequest(masked, [position - shift] * len(candidates), candidates)]
        for i in range(len(word) if len(word) > 1 else 0):
            at = position + i
            partly_masked: Ids = (*original[:at], *[mask] * (len(word) - i), *after)
            requests.append(ScoringRequest(partly_masked, [at - shift], word[i : i + 1]))
        return requests


def make_corrector(filler: BlankFiller) -> SpellingCorrector:
    """Build a corrector from a masked language model."""
    if filler.method != "masks":
        raise MismatchError(
            "An encoder-decoder cannot correct words; use an encoder with a mask token, or a "
            "decoder pre-trained with the hybrid objective."
        )
    corrector = SpellingCorrector(filler)
    if not corrector.words_after_space.words:
        raise MismatchError(
            "This model's vocabulary has no whole words, so it cannot propose corrections."
        )
    return corrector


def correct_batch(
    corrector: SpellingCorrector, texts: Sequence[str], suspects: Sequence[Sequence[SuspectWord]]
) -> list[CorrectedText]:
    """Correct several texts, given the suspect words of each."""
    requests = (request for own in suspects for word in own for request in word.requests)
    unknown = corrector.filler.tokenizer.unknown_id
    scores = score_requests(corrector.filler.network, requests, bidirectional=True)
    corrected = []
    for text, own in zip(texts, suspects, strict=True):
        corrections = []
        for suspect in own:
            log_probs = [next(scores).log_probs.tolist() for _ in suspect.requests]
            word = text[suspect.begin : suspect.end]
            is_known = all(unknown not in request.targets for request in suspect.requests)
            if correction := _best_correction(word, suspect, log_probs, is_known):
                corrections.append(correction)
        corrected.append(CorrectedText(text, _apply(text, corrections), corrections))
    return corrected


def _best_correction(
    word: str, suspect: SuspectWord, log_probs: Sequence[Sequence[float]], is_known: bool
) -> Correction | None:
    """Return the best correction of a word, if its gain is large enough."""
    first, *rest = log_probs
    was = MIN_LOG_PROB
    if is_known:
        was = max(MIN_LOG_PROB, sum(chain.from_iterable(rest)) if rest else first[-1])
    ranked = [
        (log_prob - EDIT_COST * similar.edits, log_prob, similar)
        for log_prob, similar in zip(first, suspect.similar, strict=False)
    ]
    best, log_prob, similar = max(ranked, key=lambda row: row[0])
    gain = best - was
    if gain < MIN_GAIN:
        return None
    return Correction(
        word=word,
        correction=match_case(word, similar.word),
        begin=suspect.begin,
        end=suspect.end,
        edits=similar.edits,
        score=exp(log_prob),
        was=exp(was),
        gain=gain,
    )


def match_case(word: str, other: str) -> str:
    """Return another word with the capitalisation of a word.

    >>> [match_case(word, "the") for word in ("teh", "Teh", "TEH")]
    ['the', 'The', 'THE']
    """
    if len(word) > 1 and word.isupper():
        return other.upper()
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def _apply(text: str, corrections: Sequence[Correction]) -> str:
    parts, at = [], 0
    for correction in corrections:
        parts += [text[at : correction.begin], correction.correction]
        at = correction.end
    return "".join([*parts, text[at:]])
