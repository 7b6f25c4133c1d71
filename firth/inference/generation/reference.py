"""Reference implementation of beam search, the truth that tests compare the fast one with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """Generated tokens, with the end token if there is one, and their score."""

    tokens: tuple[int, ...]
    score: float


def reference_beam_search(
    log_probs: Callable[[tuple[int, ...]], Sequence[float]],
    *,
    beams: int,
    max_new_tokens: int,
    eos_token_id: int | None = None,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """Return up to `beams` completions by log-probability / length ** length_penalty, best first.

    `log_probs(tokens)` returns the log-probability of each next token after the generated ones.
    The search ends when the best running beam, divided by its length now, cannot beat the worst of
    `beams` ended ones (`early_stopping=False` in `transformers`).

    >>> from math import log
    >>> best, _ = reference_beam_search(lambda _: [log(0.4), log(0.6)], beams=2, max_new_tokens=3)
    >>> best.tokens
    (1, 1, 1)
    """
    running, ended = [Hypothesis((), 0.0)], list[Hypothesis]()
    for length in range(1, max_new_tokens + 1):
        candidates = [
            Hypothesis((*beam.tokens, token), beam.score + value)
            for beam in running
            for token, value in enumerate(log_probs(beam.tokens))
        ]
        candidates = sorted(candidates, key=lambda beam: -beam.score)[: 2 * beams]
        is_over = [length == max_new_tokens or c.tokens[-1] == eos_token_id for c in candidates]
        over = [c for c, ends in zip(candidates[:beams], is_over, strict=False) if ends]
        ended += [Hypothesis(c.tokens, c.score / length**length_penalty) for c in over]
        ended = sorted(ended, key=lambda beam: -beam.score)[:beams]
        running = [c for c, ends in zip(candidates, is_over, strict=True) if not ends][:beams]
        best = running[0].score / length**length_penalty if running else float("-inf")
        if len(ended) == beams and best <= ended[-1].score:
            break
    return ended
