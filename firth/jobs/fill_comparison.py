"""Fill the same blank with two models: with the text on both sides, and with that before it only.

A word is right if each of its tokens is the most probable one at its place, as for the last words
of LAMBADA (Paperno et al. 2016). An encoder gets as many mask tokens as the word has tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import exp
from typing import Any

import numpy as np

from firth.data.memory import Data, as_source
from firth.inference.infilling.blanks import BlankedText, BlankFill, find_blanks
from firth.inference.infilling.fill_methods import FillCandidate, check_top
from firth.inference.infilling.next_words import next_words
from firth.inference.prompting.candidates import PromptedModel
from firth.inference.scoring.token_scoring import ScoringRequest
from firth.metrics.bootstrap import Metric, estimate, means, to_json
from firth.model import AnyModel, Model, load_if_needed
from firth.tasks.readers.cloze import ClozeExample, read_cloze
from firth.tasks.readers.columns import TaskFile, good_examples
from firth.utils.arguments import check_arguments
from firth.utils.bad_rows import SKIPPED, BadRows
from firth.utils.devices import Device, Dtype, restored_torch_state
from firth.utils.errors import MismatchError, UsageError
from firth.utils.rng import Floats

BOTH_SIDES, LEFT = "left and right", "left only"


@dataclass(frozen=True, kw_only=True)
class ModelFills:
    """What one model fills into a blank."""

    model: str
    context: str  # that the model sees: left and right, or left only
    read: str  # the part of the text that it sees
    predictions: list[FillCandidate]  # best first
    answer: FillCandidate | None = None  # the right word


@dataclass(frozen=True, kw_only=True)
class FillComparison:
    """The fills of one blank by two models."""

    text: str
    models: tuple[ModelFills, ModelFills]

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ModelAccuracy:
    """How often one model fills in the right word."""

    model: str
    context: str
    accuracy: Metric
    several_tokens: int  # right words that are several tokens of this model


@dataclass(frozen=True, kw_only=True)
class AccuracyComparison:
    """The accuracy of two models on the same blanks, and the difference of the first to the second.

    Its interval is a paired bootstrap: texts are resampled, each with the answers of both models.
    """

    n: int
    models: tuple[ModelAccuracy, ModelAccuracy]
    difference: Metric
    bad: int = 0
    notes: list[str] = field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Return JSON values."""
        return to_json(self)


@check_arguments
@restored_torch_state()
def compare_fill(
    model: AnyModel,
    other: AnyModel,
    text: str,
    *,
    top: int = 5,
    targets: Sequence[str] = (),
    answer: str | None = None,
    dtype: Dtype = None,
    device: Device = None,
) -> FillComparison:
    """Fill the blank of a text with two models, for example an encoder and a decoder.

    Return the `top` words of each, or the probabilities of the `targets`; with an `answer`, also
    the probability of that word. A decoder sees only the text before the blank.
    """
    blanks = _one_blank(text)
    check_top(top)
    if answer is not None and not answer.strip():
        raise UsageError("`answer` is empty: give the right word, or omit it.")
    fills = [
        _fills(load_if_needed(one, device, dtype=dtype), text, blanks, top, targets, answer)
        for one in (model, other)
    ]
    return FillComparison(text=text, models=(fills[0], fills[1]))


@check_arguments
@restored_torch_state()
def compare_fill_accuracy(
    model: AnyModel,
    other: AnyModel,
    data: Data,
    *,
    column: str | None = None,
    format: str | None = None,
    strict: bool = False,
    dtype: Dtype = None,
    device: Device = None,
) -> AccuracyComparison:
    """Compare how often two models fill in the right word.

    `data` is a table with texts that have one blank (`column`, by default text) and with answers:
    words separated by `|` are all right. Bad rows are skipped, or an error with `strict`.
    """
    bad = BadRows(SKIPPED, strict=strict)
    source = as_source(data, "data", "text, answer")
    file = TaskFile(source, format=format, columns={"text": column} if column else {}, bad=bad)
    examples = list(good_examples(read_cloze, file))
    names, right, rows = ("model", "other"), [], []
    for one in (model, other):
        loaded = load_if_needed(one, device, dtype=dtype)
        hits, several = _right(prompted_model(loaded), examples)
        right.append(hits)
        rows.append((loaded, several))
    accuracies = means(dict(zip(names, right, strict=True)))
    gain = right[0] - right[1]
    both = estimate(lambda weights: {"difference": weights @ gain / len(gain)}, len(gain))
    models = [
        ModelAccuracy(
            model=_name(loaded),
            context=_context(loaded),
            accuracy=accuracies[name],
            several_tokens=several,
        )
        for name, (loaded, several) in zip(names, rows, strict=True)
    ]
    return AccuracyComparison(
        n=len(examples),
        models=(models[0], models[1]),
        difference=both["difference"],
        bad=bad.count,
        notes=bad.notes,
    )


def _one_blank(text: str) -> BlankedText:
    blanks = find_blanks(text)
    if len(blanks) != 1:
        raise UsageError(f"The text has {len(blanks)} blanks: models are compared on one blank.")
    return blanks


def _fills(
    model: Model,
    text: str,
    blanks: BlankedText,
    top: int,
    targets: Sequence[str],
    answer: str | None,
) -> ModelFills:
    prompted = prompted_model(model)
    if targets:
        found = sorted(_scored(prompted, blanks, targets), key=lambda one: -one.score)
    elif model.reads_left_context_only:
        found = next_words(prompted, blanks, top=top)
    else:
        found = model.fill(text, top=top)[0]
    right = None if answer is None else _scored(prompted, blanks, [answer])[0]
    return ModelFills(
        model=_name(model),
        context=_context(model),
        read=blanks.parts[0].rstrip() if model.reads_left_context_only else text,
        predictions=found,
        answer=right,
    )


def prompted_model(model: Model) -> PromptedModel:
    """Return what scores words in a blank; raise an error for models that cannot."""
    if not model.reads_left_context_only and model.blank_filler().method == "whole":
        raise MismatchError(
            f"{_name(model)} fills blanks by writing the whole text again (BART): compare an "
            "encoder, a decoder or an encoder-decoder with sentinels (T5)."
        )
    return PromptedModel(
        model.network,
        model.require_tokenizer(),
        model.require_encoder_tokenizer(),
        cloze=model.config.architecture == "encoder"
        or (model.config.architecture == "decoder" and not model.reads_left_context_only),
    )


def _scored(model: PromptedModel, blanks: BlankedText, words: Sequence[str]) -> list[FillCandidate]:
    """Compute the probability of each word: the product of those of its tokens."""
    requests = [answer_request(model, blanks, word) for word in words]
    for word, request in zip(words, requests, strict=True):
        if model.tokenizer.unknown_id in request.targets:
            raise UsageError(f"{word!r} is not in the vocabulary of one of the models.")
    scores = model.score(iter(requests))
    return [
        FillCandidate(word, exp(score.sum), blanks.filled([BlankFill(word)]))
        for word, score in zip(words, scores, strict=True)
    ]


def answer_request(model: PromptedModel, blanks: BlankedText, word: str) -> ScoringRequest:
    """Build the request that scores a word in a blank."""
    before, after = blanks.parts
    space = " " if model.is_encoder_decoder and before[-1:] == " " else ""  # of the span's tokens
    return model.make_request(before, after, f"{space}{word}", blank=True)


def _right(model: PromptedModel, examples: Sequence[ClozeExample]) -> tuple[Floats, int]:
    """Tell for each example whether an answer is predicted; count those of several tokens."""
    owners = [i for i, one in enumerate(examples) for _ in one.answers]
    requests = [
        answer_request(model, _one_blank(one.text), word)
        for one in examples
        for word in one.answers
    ]
    right, several = np.zeros(len(examples)), set[int]()
    scores = model.score(iter(requests))
    for i, request, score in zip(owners, requests, scores, strict=True):
        known = model.tokenizer.unknown_id not in request.targets
        right[i] = max(right[i], known and score.is_greedy)
        if len(request.targets) > 1:
            several.add(i)
    return right, len(several)


def _name(model: Model) -> str:
    return str(model.source or model.path or type(model.network).__name__)


def _context(model: Model) -> str:
    return LEFT if model.reads_left_context_only else BOTH_SIDES
