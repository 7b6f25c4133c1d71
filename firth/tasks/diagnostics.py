"""Warnings about a fine-tuning run: truncation, unknown tokens, overfitting, forgetting."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from firth.models.config import LanguageModelConfig
from firth.tasks.task import Answer, EncodedExample, Example, Task
from firth.tokenizers.tokenizer import Tokenizer

MAX_UNKNOWN = 0.05  # fraction of unknown tokens in the training data
MIN_VOCAB = 0.9  # tokenizer size as a fraction of the model's vocabulary
NOT_LEARNED = 1.05  # dev loss above this multiple of the constant baseline: nothing was learned
MEMORIZED = 0.8  # training loss below this multiple of the baseline: the model fits its data
OVERFIT = 1.15  # last dev loss above this multiple of the best one
MIN_RISE = 0.02  # and above it by this multiple of the constant baseline
MIN_PREDICTIONS = 5  # from which on it is reported that they are all the same
MAX_FORGETTING = 0.1  # nats by which the language modelling loss may rise without a warning


def check_inputs(
    items: Sequence[EncodedExample], tokenizer: Tokenizer, config: LanguageModelConfig
) -> list[str]:
    """Warn about truncated examples and about a tokenizer that does not fit data or model."""
    notes = []
    if cut := sum(item.cut > 0 for item in items):
        lost = sum(item.cut for item in items)
        notes.append(
            f"{cut:,} of {len(items):,} examples were truncated ({lost:,} tokens in all); a larger "
            "max_length keeps more."
        )
    tokens = np.concatenate([row.tokens for item in items for row in item.rows])
    if tokenizer.unknown_id is not None and len(tokens):
        unknown = float((tokens == tokenizer.unknown_id).mean())
        if unknown > MAX_UNKNOWN:
            notes.append(
                f"{unknown:.0%} of the tokens are unknown to this model's tokenizer: they are rare "
                "words, or it was trained on other text."
            )
    if len(tokenizer) < MIN_VOCAB * config.vocab_size:
        notes.append(
            f"The tokenizer has {len(tokenizer):,} tokens and the model {config.vocab_size:,}: it "
            "may belong to another model."
        )
    return notes


def check_training(
    train_losses: Sequence[float], dev_losses: Sequence[float], baseline: float | None
) -> list[str]:
    """Warn about a run that learned nothing, or overfits, given training and dev losses."""
    if not dev_losses:
        return []
    best, last = min(dev_losses), dev_losses[-1]
    scale = 1.0 if baseline is None else baseline
    failed = baseline is not None and best > NOT_LEARNED * baseline
    fell = len(train_losses) > 1 and train_losses[-1] < MEMORIZED * min(train_losses[0], scale)
    if (fell or not failed) and last > OVERFIT * best and last - best > MIN_RISE * scale:
        return [
            f"The dev loss rose from {best:.3f}, its best, to {last:.3f}: the model overfits. The "
            "weights with the best dev metric are kept. Use fewer epochs or more examples."
        ]
    if not failed:
        return []
    never = f"The dev loss never fell below {best:.3f}; a constant prediction has {baseline:.3f}"
    if fell:
        return [
            f"{never}. The training loss fell to {train_losses[-1]:.3f}: the model overfits. Use "
            "more examples, or fewer epochs."
        ]
    return [f"{never}: the learning rate is too high, or there are too few steps."]


def predicted_classes(answers: Iterable[Answer]) -> set[str]:
    """Collect the labels, tags or choices that a model predicted; empty for other tasks.

    >>> sorted(predicted_classes([{"label": "spam"}, {"tags": ["O", "B-PER"]}, {"text": "ham"}]))
    ['B-PER', 'O', 'spam']
    """
    classes: set[str] = set()
    for answer in answers:
        key = next((key for key in ("label", "labels", "tags", "choice") if key in answer), "")
        found = answer.get(key, ())
        classes.update(map(str, found) if key == "tags" else {str(found)} if key else ())
    return classes


def one_class_note(classes: Collection[str], predictions: int) -> list[str]:
    """Report a model that predicts one class for everything.

    >>> one_class_note({"spam"}, 4), one_class_note({"spam", "ham"}, 90)
    ([], [])
    >>> one_class_note({"spam"}, 90)
    ["All 90 predictions are 'spam': the model predicts one class for every example."]
    """
    if len(classes) != 1 or predictions < MIN_PREDICTIONS:
        return []
    (only,) = classes
    return [
        f"All {predictions:,} predictions are {only!r}: the model predicts one class for every "
        "example."
    ]


def check_answers(task: Task, examples: Sequence[Example], answers: Sequence[Answer]) -> list[str]:
    """Report a model that predicts one class for examples of several."""
    gold = {label for example in examples for label in task.labels(example)}
    gold = gold or set(map(str, task.strata(examples)))
    return one_class_note(predicted_classes(answers), len(answers)) if len(gold) > 1 else []


def forgetting_note(before: float, after: float) -> str:
    """Describe the change of the language modelling loss on the replayed text."""
    change = f"The loss on the replayed text went from {before:.3f} to {after:.3f}"
    if after - before <= MAX_FORGETTING:
        return f"{change}: nothing was forgotten."
    return f"{change}; a smaller replay_every, a lower learning rate or LoRA reduces forgetting."
