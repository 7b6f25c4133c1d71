"""Probabilities of candidate answers at the answer's position of a prompt.

A decoder scores an answer as the continuation of the prompt; an encoder-decoder as the decoder's
output for the prompt (or for its sentinel, at a blank); a masked model as the tokens of a masked
answer. Each becomes a `ScoringRequest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from firth.inference.generation.special_tokens import as_list, prompt_special_tokens
from firth.inference.scoring.token_scoring import ScoringRequest, TokenScores, score_requests
from firth.models.language_model import ScoringModel
from firth.models.transformer import max_input_length, max_output_length, max_text_length
from firth.tokenizers.special_tokens import SpecialTokens, special_tokens_around
from firth.tokenizers.tokenizer import Tokenizer
from firth.utils.errors import MismatchError, UsageError
from firth.utils.rng import Floats

# Inputs without content, for contextual calibration (Zhao et al. 2021, section 5).
CONTENT_FREE = ("N/A", "", "[MASK]")


@dataclass(frozen=True)
class PromptedModel:
    """A model with what determines the form of its prompts."""

    network: ScoringModel
    tokenizer: Tokenizer
    encoder_tokenizer: Tokenizer | None = None  # if the encoder has its own
    cloze: bool = False  # fills masked tokens: an encoder, or a decoder with the hybrid objective
    chat: bool = False  # prompts are rendered by its chat template, with all special tokens

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """The special tokens before and after the input."""
        config = self.network.config
        if self.chat:
            return [], []
        if not self.cloze:
            return prompt_special_tokens(config, self.encoder_tokenizer or self.tokenizer)
        if config.has_encoder:
            return special_tokens_around(self.tokenizer)
        return as_list(config.bos_token_id), as_list(config.eos_token_id)

    @property
    def sentinel(self) -> int | None:
        """The token that marks a blank in the input of an encoder-decoder (T5)."""
        ids = self.tokenizer.sentinel_ids if self.encoder_tokenizer is None else []
        return ids[0] if ids else None

    @property
    def is_encoder_decoder(self) -> bool:
        return self.network.config.architecture == "encoder-decoder"

    @property
    def max_length(self) -> int:
        """The maximum number of input tokens."""
        if self.is_encoder_decoder:
            return max_input_length(self.network)
        return max_text_length(self.network)

    def make_request(
        self, before: str, after: str, answer: str, *, blank: bool = False
    ) -> ScoringRequest:
        """Build the request that scores an answer between the texts before and after it."""
        if self.is_encoder_decoder:
            return self._encoder_decoder_request(before, after, answer, blank)
        stem = before.rstrip(" ")
        space = " " if stem != before else ""
        ids, target = tokenize_continuation(self.tokenizer, stem, f"{space}{answer}")
        if not target:
            raise no_tokens_error(answer)
        if self.cloze:
            return self._cloze_request(ids, target, answer, after)
        return self._decoder_request(ids, target)

    def _decoder_request(self, ids: Sequence[int], target: list[int]) -> ScoringRequest:
        """Score the target as the continuation of the prompt."""
        begin = self.special_tokens[0]
        # An empty prompt without a beginning-of-text token follows the end of another text.
        begin = begin or ([] if ids else as_list(self.network.config.eos_token_id))
        if not begin and not ids:
            raise UsageError("The prompt is empty: add a text, an example or an instruction.")
        kept = max(1, self.max_length - len(begin) - len(target) + 1)
        prompt = [*begin, *_last(ids, kept)]
        positions = range(len(prompt) - 1, len(prompt) - 1 + len(target))
        prefix = self.network.config.prefix_length(len(prompt))
        return ScoringRequest((*prompt, *target[:-1]), positions, target, prefix=prefix)

    def _encoder_decoder_request(
        self, before: str, after: str, answer: str, blank: bool
    ) -> ScoringRequest:
        """Score the answer as the decoder's output."""
        prefix = self.special_tokens[0] if self.encoder_tokenizer is None else []  # BART's <s>
        if blank and self.sentinel is not None:
            prefix = [self.sentinel]
        prefix = [self.network.config.decoder_start_token_id or 0, *prefix]
        max_tokens = max_output_length(self.network) - len(prefix)
        target = self.tokenizer.encode(answer)[:max_tokens]
        if not target:
            raise no_tokens_error(answer)
        positions = range(len(prefix) - 1, len(prefix) - 1 + len(target))
        source = tuple(self.encoder_input(before, after, blank=blank))
        return ScoringRequest((*prefix, *target[:-1]), positions, target, source)

    def encoder_input(self, before: str, after: str = "", *, blank: bool = False) -> list[int]:
        """Tokenize an encoder-decoder's prompt; with `blank`, a sentinel marks the answer.

        A prompt that is too long loses its beginning.
        """
        tokenizer, (prefix, suffix) = self.encoder_tokenizer or self.tokenizer, self.special_tokens
        ids = tokenizer.encode(before.rstrip(" "))
        if blank and self.sentinel is not None:
            ids = [*ids, self.sentinel, *tokenizer.encode(after)]
        return [*prefix, *_last(ids, self.max_length - len(prefix) - len(suffix)), *suffix]

    def _cloze_request(
        self, ids: list[int], target: list[int], answer: str, after: str
    ) -> ScoringRequest:
        """Score the target with all its tokens masked."""
        mask = self.tokenizer.special_ids["mask"]
        rest: list[int] = []
        if after:
            _, rest = tokenize_continuation(self.tokenizer, answer, after)
        prefix, suffix = self.special_tokens
        required = len(prefix) + len(target) + len(suffix)
        rest = rest[: max(0, self.max_length - required)]
        start = [*prefix, *_last(ids, self.max_length - required - len(rest))]
        # A decoder predicts a token at the position before it.
        first = len(start) - int(self.network.config.has_decoder)
        if first < 0:
            raise UsageError(
                "This model cannot fill a blank at the beginning: put words before it."
            )
        tokens = (*start, *[mask] * len(target), *rest, *suffix)
        return ScoringRequest(tokens, range(first, first + len(target)), target)

    def prompt_size(self, before: str, after: str, answers: Sequence[str]) -> int:
        """Count the tokens of a prompt with the longest of the answers."""
        tokenizer = self.encoder_tokenizer or self.tokenizer
        size = len(tokenizer.encode(before.rstrip(" "))) + sum(map(len, self.special_tokens))
        size += len(tokenizer.encode(after)) if self.is_encoder_decoder or self.cloze else 0
        if self.is_encoder_decoder:
            return size + 1
        lengths = (len(self.tokenizer.encode(f" {answer}")) for answer in answers)
        return size + max(lengths, default=0)

    def score(self, requests: Iterator[ScoringRequest]) -> Iterator[TokenScores]:
        """Score requests in order."""
        return score_requests(self.network, requests, bidirectional=self.cloze)


def check_mask_token(tokenizer: Tokenizer, name: str) -> None:
    """Raise MismatchError for an encoder's tokenizer without a mask token."""
    if "mask" not in tokenizer.special_ids:
        raise MismatchError(
            f"The tokenizer of {name} has no mask token, which prompting an encoder needs."
        )


def no_tokens_error(answer: str) -> MismatchError:
    """Return the error for an answer that is empty or unknown to the tokenizer."""
    return MismatchError(f"This model's tokenizer has no token for the answer {answer!r}.")


def _last(ids: Sequence[int], count: int) -> Sequence[int]:
    """Return the last `count` tokens, or none if `count` is not positive."""
    return ids[max(0, len(ids) - max(0, count)) :]


def tokenize_continuation(
    tokenizer: Tokenizer, before: str, continuation: str
) -> tuple[list[int], list[int]]:
    """Tokenize a text, and its continuation in the context of that text.

    If the continuation changes the tokens of the text, it is tokenized on its own.
    """
    first, both = tokenizer.encode(before), tokenizer.encode(before + continuation)
    if both[: len(first)] == first and len(both) > len(first):
        return first, both[len(first) :]
    return first, tokenizer.encode(continuation)


def normalize_log_probs(log_probs: Floats) -> Floats:
    """Normalise the log-probabilities of K answers so that the probabilities sum to 1: (…, K).

    >>> np.exp(normalize_log_probs(np.log([0.02, 0.06]))).round(2).tolist()
    [0.25, 0.75]
    """
    shifted = log_probs - log_probs.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def calibrate_log_probs(log_probs: Floats, content_free: Floats) -> Floats:
    """Divide the probabilities of K answers by their mean for F content-free inputs, (F, K).

    Contextual calibration (Zhao et al. 2021, section 5: W is the inverse of the content-free
    probabilities, b is 0). It ranks answers as their pointwise mutual information with the text
    does (Holtzman et al. 2021).

    >>> biased = np.log([[0.8, 0.2], [0.6, 0.4]])  # the first answer is likelier for any text
    >>> np.exp(calibrate_log_probs(np.log([0.6, 0.4]), biased)).round(3).tolist()
    [0.391, 0.609]
    """
    prior = np.exp(normalize_log_probs(content_free)).mean(axis=0)
    log_prior = np.log(np.maximum(prior, np.finfo(float).tiny))
    return normalize_log_probs(normalize_log_probs(log_probs) - log_prior)
