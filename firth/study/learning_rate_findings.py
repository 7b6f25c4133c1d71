"""What the study of learning rates concludes: the best rate, the range beside it, its ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from firth.study.engine.statistics import Scores, difference, holm
from firth.study.engine.study import Finding, decided, points, with_interval


@dataclass(frozen=True, kw_only=True)
class RateFound:
    """What the runs with one learning rate gave."""

    learning_rate: float
    scores: Scores | None  # None: all runs failed
    train_loss: float | None
    failed: int  # runs that diverged or learned nothing
    runs: int
    error: str = ""


def rate_findings(found: Mapping[float, RateFound], margin: float) -> list[Finding]:
    """Conclude from the scores by factor; factor 1 is the recipe's learning rate."""
    scores = {factor: one.scores for factor, one in found.items() if one.scores is not None}
    best = max(scores, key=lambda factor: scores[factor].value)
    ends = {
        factor: difference(scores[best], scores[factor]) for factor in (min(scores), max(scores))
    }
    below, above = holm(ends).values() if len(ends) == 2 else [*holm(ends).values()] * 2
    too_low = f"{min(scores):g} times the recipe's rate is too low"
    too_high = f"{max(scores):g} times the recipe's rate is too high"
    return [
        _recipe(found, scores, best, margin),
        _range(found, scores, best),
        _breaking(found, best),
        decided("rate-too-high", too_high, above),
        decided("rate-too-low", too_low, below),
    ]


def _recipe(
    found: Mapping[float, RateFound], scores: Mapping[float, Scores], best: float, margin: float
) -> Finding:
    """Decide whether the recipe's rate scores at most `margin` less than the best."""
    if 1.0 not in scores:
        text = "All runs with the recipe's learning rate failed."
        return Finding(name="recipe-rate", text=text, holds=False)
    metric = difference(scores[1.0], scores[best]).metric
    low, high = (metric.value if end is None else end for end in (metric.low, metric.high))
    size = with_interval(metric, unit="points", scale=100)
    compared = "the recipe's"
    if best != 1:
        compared = f"{best:g} times the recipe's, which scores {size} against it"
    return Finding(
        name="recipe-rate",
        text=f"The best learning rate is {found[best].learning_rate:.2g}: {compared}.",
        holds=True if low > -margin else False if high < -margin else None,
        **points(metric),
    )


def good_range(scores: Mapping[float, Scores], best: float) -> tuple[float, float]:
    """Return the lowest and highest factor around the best whose scores lie in its interval."""
    low = scores[best].metric().low
    enough = scores[best].value if low is None else low
    factors = sorted(scores)
    first = last = factors.index(best)
    while first > 0 and scores[factors[first - 1]].value >= enough:
        first -= 1
    while last + 1 < len(factors) and scores[factors[last + 1]].value >= enough:
        last += 1
    return factors[first], factors[last]


def _range(
    found: Mapping[float, RateFound], scores: Mapping[float, Scores], best: float
) -> Finding:
    low, high = good_range(scores, best)
    rates = f"{found[low].learning_rate:.2g} to {found[high].learning_rate:.2g}"
    return Finding(
        name="rate-range",
        text=f"Learning rates from {rates} ({low:g} to {high:g} times the recipe's) score within "
        "the 95 % interval of the best.",
        holds=low <= 1 <= high,
        value=high / low,
        unit="times",
    )


def _breaking(found: Mapping[float, RateFound], best: float) -> Finding:
    """Say from which factor on most of the runs fail."""
    failing = [
        factor for factor, one in found.items() if factor > best and 2 * one.failed > one.runs
    ]
    slow = [factor for factor, one in found.items() if factor < best and 2 * one.failed > one.runs]
    text = f"Up to {max(found):g} times the recipe's rate most runs learn the task"
    if failing:
        one = found[min(failing)]
        text = (
            f"From {min(failing):g} times the recipe's rate ({one.learning_rate:.2g}) on most runs "
            f"fail: {one.failed} of {one.runs}"
        )
    ending = f"; up to {max(slow):g} times they have learned nothing yet" if slow else ""
    return Finding(
        name="rate-breaks",
        text=f"{text}{ending}.",
        holds=bool(failing),
        value=min(failing) if failing else None,
        unit="times",
    )
