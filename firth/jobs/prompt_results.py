"""Answers of a prompted model, in the form of its task, with their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from firth.inference.prompting.prompt_scorer import PromptPrediction
from firth.tasks.task import Answer, Example
from firth.tasks.zero_shot_choice import chance_accuracy, choose

AnswerScores = dict[str, float]  # metric -> score of an answer; {} without a gold answer


def _labelled(
    example: Example, prediction: PromptPrediction, words: Mapping[str, str]
) -> tuple[Answer, AnswerScores]:
    labels, probs = list(words), np.exp(prediction.log_probs)
    scores = dict(zip(labels, probs.tolist(), strict=True))
    best = labels[prediction.best]
    answer = {"label": best, "word": words[best], "score": scores[best], "scores": scores}
    if example.label is None:
        return answer, {}
    return answer | {"gold": example.label}, {"accuracy": float(best == example.label)}


def _chosen(
    example: Example, prediction: PromptPrediction, words: Mapping[str, str]
) -> tuple[Answer, AnswerScores]:
    chosen = choose(prediction, example.choices)
    answer = {
        "choice": chosen.by_sum,
        "text": example.choices[chosen.by_sum],
        "choices": list(example.choices),
        "scores": np.exp(prediction.log_probs).tolist(),
        "choice_by_character": chosen.by_character,
    }
    if example.label is None:
        return answer, {}
    return answer | {"gold": example.label}, chosen.scores(example.label)


def _generated(
    example: Example, prediction: PromptPrediction, words: Mapping[str, str]
) -> tuple[Answer, AnswerScores]:
    answer = {"source": example.source, "text": prediction.text}
    if example.target is None:
        return answer, {}
    exact = normalize_text(prediction.text) == normalize_text(example.target)
    return answer | {"gold": example.target, "exact": exact}, {"exact": float(exact)}


def normalize_text(text: str) -> str:
    """Normalize an answer: ignore case, extra white space and a final full stop.

    >>> normalize_text(" Loutre  de mer. "), normalize_text("-5")
    ('loutre de mer', '-5')
    """
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


SCORERS: dict[
    str, Callable[[Any, PromptPrediction, Mapping[str, str]], tuple[Answer, AnswerScores]]
] = {
    "classify": _labelled,
    "pair": _labelled,
    "choice": _chosen,
    "seq2seq": _generated,
}


def majority_accuracy(task: str, queries: Sequence[Example]) -> float | None:
    """The accuracy of always predicting the most frequent label, or of a random choice."""
    if task == "seq2seq":
        return None
    known = [example for example in queries if example.label is not None]
    if not known:
        return None
    if task == "choice":
        return chance_accuracy(known)
    return Counter(example.label for example in known).most_common(1)[0][1] / len(known)
