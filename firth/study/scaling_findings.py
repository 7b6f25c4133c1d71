"""Findings of the study of scaling.

N  parameters without embeddings     D  tokens     C = 6 N D  training FLOPs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firth.metrics.bootstrap import Metric
from firth.study.engine.statistics import Scores, difference, holm
from firth.study.engine.study import Finding, decided
from firth.study.scaling_law import FLOPS, LawFit

MIN_R_SQUARED = 0.95  # of the variance between runs that a law must explain


class ScalingPoint(NamedTuple):
    """The runs of one size and number of tokens."""

    parameters: int
    tokens: int
    hidden_size: int
    scores: Scores

    @property
    def flops(self) -> float:
        """The training compute C = 6 N D."""
        return FLOPS * self.parameters * self.tokens


def scaling_findings(
    points: Sequence[ScalingPoint],
    fit: LawFit,
    predicted: Metric,
    largest: Sequence[ScalingPoint],
) -> list[Finding]:
    return [
        law_finding(points, fit),
        prediction_finding(predicted, largest),
        *_comparisons(points),
        _optimum(fit),
    ]


def law_finding(points: Sequence[ScalingPoint], fit: LawFit) -> Finding:
    """Say whether the law explains the runs, with its exponents."""
    losses = np.array([point.scores.value for point in points])
    r_squared = 1 - float(np.mean(fit.residuals**2) / np.var(losses))
    alpha = fit.metric(lambda law: law.size_exponent)
    beta = fit.metric(lambda law: law.token_exponent)
    floor = fit.metric(lambda law: law.irreducible_loss)
    numbers = f"α = {_text(alpha)}, β = {_text(beta)}, E = {_text(floor)}"
    law = f"E + A / N^α + B / D^β with {numbers}"
    explained = f"it explains {100 * r_squared:.1f} % of the variance between {len(points)} runs"
    open_ones = fit.undetermined()
    if r_squared < MIN_R_SQUARED:
        text, holds = f"The loss does not follow {law}: {explained}.", False
    elif open_ones:
        named = " and ".join(open_ones)
        text = f"The loss follows {law}; {explained}, but they do not determine {named}."
        holds = None
    else:
        text, holds = f"The loss falls as a power law: {law}; {explained}.", True
    return Finding(
        name="power-law",
        text=text,
        holds=holds,
        value=beta.value,
        low=beta.low,
        high=beta.high,
        unit="exponent of tokens",
    )


def prediction_finding(predicted: Metric, largest: Sequence[ScalingPoint]) -> Finding:
    """Compare the prediction with the measured loss of the largest run."""
    said = f"The law predicted a loss of {_text(predicted)} for the largest run"
    if not largest:
        return Finding(name="prediction", text=f"{said}, which failed.", holds=None)
    point = largest[0]
    measured = point.scores.metric()
    assert predicted.low is not None
    assert predicted.high is not None
    inside = predicted.low <= measured.value <= predicted.high
    off = 100 * (measured.value / predicted.value - 1)
    return Finding(
        name="prediction",
        text=f"{said} ({point.parameters:,} parameters, {point.tokens:,} tokens) before it was "
        f"run; measured: {_text(measured)}, {'inside' if inside else 'outside'} the interval "
        f"({off:+.1f} %).",
        holds=inside,
        value=measured.value,
        low=measured.low,
        high=measured.high,
        unit="nats per token",
    )


def _comparisons(points: Sequence[ScalingPoint]) -> list[Finding]:
    """Compare the smallest with the largest model, and the fewest with the most tokens."""
    ends = {
        "model-size": sorted(p for p in points if p.tokens == max(q.tokens for q in points)),
        "tokens": sorted(p for p in points if p.parameters == max(q.parameters for q in points)),
    }
    found = holm({name: difference(row[0].scores, row[-1].scores) for name, row in ends.items()})
    size, tokens = ends["model-size"], ends["tokens"]
    claims = {
        "model-size": f"{size[-1].parameters:,} parameters instead of {size[0].parameters:,} "
        f"reduce the loss after {size[-1].tokens:,} tokens",
        "tokens": f"{tokens[-1].tokens:,} tokens instead of {tokens[0].tokens:,} reduce the loss "
        f"of {tokens[-1].parameters:,} parameters",
    }
    return [
        decided(
            name,
            claims[name],
            found[name],
            unit="nats",
            scale=1.0,
            digits=2,
        )
        for name in ends
    ]


def _optimum(fit: LawFit) -> Finding:
    """Say how size and tokens should grow with compute."""
    if not fit.law.has_optimum:
        text = "The law has no best model size for a compute: one of its terms is zero."
        return Finding(name="compute-optimal", text=text, holds=None)
    size = fit.metric(lambda law: law.optimal_exponents[0])
    return Finding(
        name="compute-optimal",
        text=f"The best size for a compute C = 6 N D grows as C^a with a = {_text(size)}, and the "
        f"tokens as C^(1 - a); Hoffmann et al. 2022 found 0.46 by the same fit.",
        holds=None if fit.undetermined() else True,
        value=size.value,
        low=size.low,
        high=size.high,
    )


def _text(metric: Metric) -> str:
    """Format a value with its interval.

    >>> _text(Metric(value=0.345, low=0.3, high=0.4))
    '0.345 (0.300 to 0.400)'
    """
    if metric.low is None or metric.high is None:
        return f"{metric.value:.3f}"
    return f"{metric.value:.3f} ({metric.low:.3f} to {metric.high:.3f})"
