"""Multiple choice without fine-tuning: a language model takes the most probable choice.

Each choice is scored after the text and a space, by the sum of its tokens' log-probabilities.
`accuracy` takes the choice with the highest sum (Brown et al. 2020, section 2.4), `accuracy_norm`
the one with the highest sum per character: acc and acc_norm of the lm-evaluation-harness (Gao et
al. 2021). As there, the first of several equal choices is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from firth.data.readers import reporting_errors
from firth.inference.prompting.candidates import PromptedModel, check_mask_token
from firth.inference.prompting.prompt_scorer import (
    PromptPrediction,
    PromptQuestion,
    score_answers,
)
from firth.inference.prompting.templates import make_prompt_format
from firth.metrics.language_modelling import proportions
from firth.models.language_model import predicts_tokens
from firth.tasks.readers.columns import good_examples, place
from firth.tasks.readers.examples import ChoiceExample
from firth.tasks.readers.table_files import read_choices
from firth.tasks.scoring_task import DENOISES, Scorer, ScoringOptions, ScoringResult, ScoringTask
from firth.utils.errors import InputError, MismatchError
from firth.utils.rng import Floats

# Equal choices may differ by as much: sums of 32 bits depend on the batch they were computed in.
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class ChosenAnswers:
    """The choices that a language model takes."""

    by_sum: int  # the highest log-probability
    by_character: int  # the highest log-probability per character
    tied: bool  # several choices have the highest log-probability

    def scores(self, label: int) -> dict[str, float]:
        """Compare with the right choice."""
        found = {"accuracy": self.by_sum, "accuracy_norm": self.by_character}
        return {name: float(chosen == label) for name, chosen in found.items()}


def choose(prediction: PromptPrediction, choices: Sequence[str]) -> ChosenAnswers:
    """Take the most probable of the scored choices.

    >>> from firth.inference.prompting.prompt_scorer import RenderedPrompt
    >>> sums = np.array([-4.0, -6.0])
    >>> scored = PromptPrediction(RenderedPrompt("It is ", "", (), 0, False), sums, sums)
    >>> choose(scored, ["red", "very red"])
    ChosenAnswers(by_sum=0, by_character=1, tied=False)
    """
    lengths = np.array([len(choice) for choice in choices])
    highest = _highest(prediction.log_probs)
    per_character = _highest(prediction.log_likelihoods / lengths)
    return ChosenAnswers(highest[0], per_character[0], tied=len(highest) > 1)


def _highest(scores: Floats) -> list[int]:
    """Return the indices of the highest score.

    >>> _highest(np.array([-3.0, -2.0, -2.0000000001]))
    [1, 2]
    """
    equal = np.isclose(scores, scores.max(), rtol=RELATIVE_TOLERANCE, atol=RELATIVE_TOLERANCE)
    return np.flatnonzero(equal).tolist()


def chance_accuracy(examples: Sequence[ChoiceExample]) -> float:
    """Compute the expected accuracy of random choices.

    >>> chance_accuracy([ChoiceExample(text="Ice is", choices=("hot", "cold", "red", "dry"))])
    0.25
    """
    return float(np.mean([1 / len(example.choices) for example in examples]))


def measure(scorer: Scorer, options: ScoringOptions) -> ScoringResult:
    """Compute the accuracies of the most probable choices."""
    model = _prompted_model(scorer)
    examples = list(islice(_examples(scorer, options), options.limit or None))
    if not examples:
        raise InputError(f"{options.data} has no examples that can be scored.")
    predictions = list(_predictions(scorer, model, examples))
    pairs = list(zip(examples, predictions, strict=True))
    chosen = [choose(prediction, example.choices) for example, prediction in pairs]
    rows = [one.scores(own.label or 0) for one, own in zip(chosen, examples, strict=True)]
    ties = sum(one.tied for one in chosen)
    cut = sum(prediction.prompt.cut for prediction in predictions)
    scored = "masked tokens of each choice" if model.cloze else "tokens of each choice"
    details = {
        "method": f"the log-probabilities of the {scored} after the text, zero-shot",
        "ties": ties,
        "chance": chance_accuracy(examples),
    }
    return ScoringResult(
        n=len(examples),
        metrics=proportions({name: [row[name] for row in rows] for name in rows[0]}),
        details=details,
        notes=[DENOISES] * scorer.denoises + _notes(examples, ties, cut),
    )


def _predictions(
    scorer: Scorer, model: PromptedModel, examples: Sequence[ChoiceExample]
) -> Iterator[PromptPrediction]:
    """Score the choices of each example after its text."""
    questions = (PromptQuestion({"text": one.text}, answers=one.choices) for one in examples)
    format = make_prompt_format("choice", cloze=model.cloze)
    for done, prediction in enumerate(score_answers(model, format, questions), 1):
        scorer.progress("questions answered", done, len(examples))
        yield prediction


def _prompted_model(scorer: Scorer) -> PromptedModel:
    """Prepare the model, or raise MismatchError if it predicts no tokens."""
    if not predicts_tokens(scorer.network):
        raise MismatchError(
            f"{scorer.name} has no head for choice and no language head to score choices with: use "
            "`firth finetune --task choice` first, or a pre-trained language model."
        )
    cloze = scorer.config.architecture == "encoder"
    if cloze:
        check_mask_token(scorer.tokenizer, scorer.name)
    return PromptedModel(
        scorer.network,
        scorer.tokenizer,
        scorer.encoder_tokenizer,
        cloze=cloze,
    )


def _examples(scorer: Scorer, options: ScoringOptions) -> Iterator[ChoiceExample]:
    """Yield the examples; choices without a token are reported as bad rows."""
    for example in good_examples(read_choices, options.file):
        with reporting_errors(options.bad):
            for choice in example.choices:
                if not scorer.tokenizer.encode(choice):
                    raise InputError(
                        f"{place(options.data, example.line)}: the model's tokenizer has no token "
                        f"for the choice {choice!r}."
                    )
            yield example


def _notes(examples: Sequence[ChoiceExample], ties: int, cut: int) -> list[str]:
    """Say what the accuracies are, and which questions were special."""
    count = len(examples)
    notes = [
        "accuracy takes the choice with the highest sum, accuracy_norm the one with the highest "
        f"sum per character; a random choice has an accuracy of {chance_accuracy(examples):.4f}."
    ]
    if ties:
        notes.append(
            f"{ties:,} of {count:,} questions are ties, in which the first of the most probable "
            "choices is taken."
        )
    if cut:
        notes.append(
            f"{cut:,} of {count:,} texts were longer than the maximum length; their ends were kept."
        )
    return notes


CHOICE = ScoringTask(
    about="multiple choice by the log-probability of each choice",
    columns="text, choices, label",
    metric="accuracy",
    architectures=("encoder", "decoder", "encoder-decoder"),
    options=(),
    roles=("text", "choices", "label"),
    run=measure,
)
