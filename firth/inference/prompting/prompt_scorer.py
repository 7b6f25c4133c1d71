"""Prompting: choose among candidate answers by their probability, or generate an answer.

Prompts are rendered in chunks, so memory does not grow with the number of questions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.text_generation import Completion, TextGenerator
from firth.inference.infilling.span_filling import tokens_after_sentinel
from firth.inference.prompting.candidates import (
    CONTENT_FREE,
    PromptedModel,
    calibrate_log_probs,
    normalize_log_probs,
)
from firth.inference.prompting.templates import BLANK, LABELS, PromptFormat, Values
from firth.inference.scoring.token_scoring import ScoringRequest, TokenScores
from firth.utils.rng import Floats
from firth.utils.streams import bounded_batches

CHUNK_SIZE = 64  # questions rendered together

Shot = tuple[Values, str]  # an example and its answer
Prompt = tuple[str, str, tuple[str, ...]]  # text before the answer, text after it, the answers
NO_SCORES: Floats = np.empty(0)


@dataclass(frozen=True)
class PromptQuestion:
    """A question with its few-shot examples and candidate answers."""

    values: Values
    shots: tuple[Shot, ...] = ()
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class RenderedPrompt:
    """A question as prompt text that fits into the model's context."""

    before: str
    after: str
    shots: tuple[Shot, ...]
    dropped: int  # examples that did not fit
    cut: bool  # too long even without examples

    @property
    def text(self) -> str:
        """The prompt as it is shown to a person."""
        return f"{self.before}{BLANK}{self.after}" if self.after else self.before.rstrip(" ")


@dataclass(frozen=True)
class PromptPrediction:
    """A model's answer: scores of the candidates, or generated text."""

    prompt: RenderedPrompt
    log_probs: Floats  # (K,) normalised over the answers; the highest is the prediction
    log_likelihoods: Floats  # (K,) summed over each answer's tokens
    text: str = ""

    @property
    def best(self) -> int:
        """The index of the most probable answer."""
        return int(self.log_probs.argmax())


def render_prompt(
    model: PromptedModel, format: PromptFormat, question: PromptQuestion, *, reserved: int = 0
) -> RenderedPrompt:
    """Render a question, without the first examples if not all fit.

    `reserved` is the number of tokens to leave free for a generated answer.
    """

    def size(dropped: int) -> int:
        text = format.prompt(question.shots[dropped:], question.values)
        return reserved + model.prompt_size(*text, question.answers)

    count, dropped, limit = len(question.shots), 0, model.max_length
    if size(0) > limit:
        dropped = bisect_left(range(count), -limit, key=lambda dropped: -size(dropped))
    shots = question.shots[dropped:]
    before, after = format.prompt(shots, question.values)
    cut = dropped == count and size(count) > limit
    return RenderedPrompt(before, after, shots, dropped, cut)


def score_answers(
    model: PromptedModel,
    format: PromptFormat,
    questions: Iterable[PromptQuestion],
    *,
    calibrate: bool = False,
    by_mean: bool = False,
) -> Iterator[PromptPrediction]:
    """Score the answers to each question by the sum (`by_mean`: mean) of token log-probabilities.

    With `calibrate`, probabilities are divided by those for content-free inputs.
    """
    for chunk in bounded_batches(questions, lambda one: 1, max_items=CHUNK_SIZE):
        rendered = [render_prompt(model, format, question) for question in chunk]
        pairs = list(zip(chunk, rendered, strict=True))
        prompts: list[Prompt] = [(own.before, own.after, one.answers) for one, own in pairs]
        content_free: list[list[Prompt]] = []
        if calibrate:
            content_free = [_content_free_prompts(format, one, own) for one, own in pairs]
        extra = list(dict.fromkeys(prompt for own in content_free for prompt in own))
        scores = model.score(_requests(model, [*prompts, *extra], blank=format.template.blank))
        own_scores = [_next_scores(scores, len(answers), by_mean) for *_, answers in prompts]
        priors = {prompt: _next_scores(scores, len(prompt[2]), by_mean)[0] for prompt in extra}
        for i, (values, log_likelihoods) in enumerate(own_scores):
            log_probs = normalize_log_probs(values)
            if calibrate:
                prior = np.stack([priors[prompt] for prompt in content_free[i]])
                log_probs = calibrate_log_probs(values, prior)
            yield PromptPrediction(rendered[i], log_probs, log_likelihoods)


def _requests(
    model: PromptedModel, prompts: Sequence[Prompt], *, blank: bool
) -> Iterator[ScoringRequest]:
    for before, after, answers in prompts:
        for answer in answers:
            yield model.make_request(before, after, answer, blank=blank)


def _next_scores(scores: Iterator[TokenScores], count: int, by_mean: bool) -> tuple[Floats, Floats]:
    """Take the scores of the next answers: what they are ranked by, and log-likelihoods."""
    own = list(islice(scores, count))
    sums = np.array([score.sum for score in own])
    return np.array([score.mean for score in own]) if by_mean else sums, sums


def _content_free_prompts(
    format: PromptFormat, question: PromptQuestion, rendered: RenderedPrompt
) -> list[Prompt]:
    """Return the prompt with its text replaced by each content-free input."""
    prompts = []
    for text in CONTENT_FREE:
        values = {
            name: value if name == LABELS else text for name, value in question.values.items()
        }
        prompts.append((*format.prompt(rendered.shots, values), question.answers))
    return prompts


def generate_answers(
    model: PromptedModel,
    format: PromptFormat,
    questions: Iterable[PromptQuestion],
    *,
    max_new_tokens: int = 32,
) -> Iterator[PromptPrediction]:
    """Generate an answer to each question."""
    generator = TextGenerator(
        network=model.network,
        tokenizer=model.tokenizer,
        encoder_tokenizer=model.encoder_tokenizer,
        config=GenerationConfig(
            max_new_tokens=max_new_tokens, stop=(format.stop,) if format.stop else ()
        ),
        special_tokens=not model.chat,
    )
    sentinel = model.sentinel if format.template.blank and model.is_encoder_decoder else None
    reserved = 0 if model.is_encoder_decoder else min(max_new_tokens, model.max_length // 2)
    for chunk in bounded_batches(questions, lambda one: 1, max_items=CHUNK_SIZE):
        prompts = [render_prompt(model, format, one, reserved=reserved) for one in chunk]
        results = generator.complete([_input_text(model, own, sentinel) for own in prompts])
        for prompt, result in zip(prompts, results, strict=True):
            text = _answer_text(model, result.completions[0], sentinel)
            yield PromptPrediction(prompt, NO_SCORES, NO_SCORES, text)


def _input_text(model: PromptedModel, prompt: RenderedPrompt, sentinel: int | None) -> str:
    """Return the input text of a generative model, with a sentinel at a blank."""
    if sentinel is None:
        return prompt.before.rstrip(" ")
    return f"{prompt.before}{model.tokenizer.backend.id_to_token(sentinel)}{prompt.after}"


def _answer_text(model: PromptedModel, completion: Completion, sentinel: int | None) -> str:
    """Return the completion, or the span after the sentinel."""
    if sentinel is None:
        return completion.text.strip()
    tokenizer = model.tokenizer
    ids = tokens_after_sentinel(completion.tokens, sentinel, set(tokenizer.sentinel_ids))
    return tokenizer.decode(ids, skip_specials=True).strip()
