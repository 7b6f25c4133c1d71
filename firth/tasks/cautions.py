"""What a person should know of a run that does not go well: said when it happens, with figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.models.config import ModelConfig
from firth.tasks.task import Item
from firth.text.tokenizer import Tokenizer

UNKNOWN = 0.05  # of the tokens of a text: more, and the vocabulary is another text's
SMALLER = 0.9  # of a model's vocabulary: a tokenizer with fewer tokens is not its own
WORSE = 1.05  # times the loss of a constant guess: such a run has learned nothing
BY_HEART = 0.8  # of that loss: what is learned, if not what is asked
RISEN = 1.15  # times the best dev loss: from there on a model over-fits
FORGOTTEN = 0.1  # nats by which the language model's loss may rise before it is said


def of_text(items: Sequence[Item], tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
    """Texts that are too long, and a tokenizer that does not know them."""
    notes = []
    if cut := sum(item.cut > 0 for item in items):
        lost = sum(item.cut for item in items)
        notes.append(
            f"{cut:,} of {len(items):,} examples are too long and were cut ({lost:,} tokens in "
            "all); a larger length keeps more."
        )
    tokens = np.concatenate([row.tokens for item in items for row in item.rows])
    if tokenizer.unknown_id is not None and len(tokens):
        share = float((tokens == tokenizer.unknown_id).mean())
        if share > UNKNOWN:
            notes.append(
                f"{share:.0%} of the tokens are unknown to this model's tokenizer: it was made for "
                "other text."
            )
    if len(tokenizer) < SMALLER * config.vocabulary:
        notes.append(
            f"The tokenizer has {len(tokenizer):,} tokens and the model {config.vocabulary:,}: it "
            "may not be the model's own."
        )
    return notes


def of_learning(
    learned: Sequence[float], losses: Sequence[float], guess: float | None
) -> list[str]:
    """A rate that was too high, and over-fitting, from the losses of a run and on its dev part."""
    if not losses:
        return []
    best, last = min(losses), losses[-1]
    lost = guess is not None and best > WORSE * guess
    by_heart = guess is not None and bool(learned) and learned[-1] < BY_HEART * guess
    if lost and not by_heart:
        return [
            f"The dev loss never fell below {best:.3f}, but saying the same of every example would "
            f"lose {guess:.3f}: the rate is too high, or there are too few steps."
        ]
    if lost or (len(losses) > 1 and last > RISEN * best):
        return [
            f"The dev loss went from {best:.3f}, its best, to {last:.3f}: the model over-fits, and "
            "is surer of itself than it should be. The weights of the validation with the best "
            "figure are kept. Fewer epochs or more examples help."
        ]
    return []


def of_memory(before: float, after: float) -> str:
    """What the language model lost on a text, in words."""
    said = (
        f"The language model's loss on the text to remember went from {before:.3f} to {after:.3f}"
    )
    if after - before <= FORGOTTEN:
        return f"{said}: nothing was forgotten."
    return (
        f"{said}: it forgets; a smaller replay=, a smaller rate or a strategy such as lora helps."
    )
