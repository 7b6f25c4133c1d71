"""Metrics of language models: perplexity, bits per byte, and accuracy on minimal pairs."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from firth.metrics.bootstrap import (
    Bootstrap,
    Metric,
    Weights,
    check_pairs,
    divide,
    estimate,
    finite_numbers,
    means,
)
from firth.utils.errors import InputError
from firth.utils.rng import Floats

Name = TypeVar("Name", bound=Hashable)

# Counts of one part of a text.
COLUMNS = ("nats", "tokens", "words", "characters", "bytes")
BITS_PER_NAT = 1 / math.log(2)
MAX_NATS = 700.0  # whose exponential is still finite
NO_MEAN_INTERVAL = "one of the averaged metrics has none"
# Metric -> the unit by which nats are divided, and whether it is a perplexity (else bits).
UNITS = {
    "token_perplexity": ("tokens", True),
    "word_perplexity": ("words", True),
    "bits_per_character": ("characters", False),
    "bits_per_byte": ("bytes", False),
}


def language_model_metrics(counts: Floats, bootstrap: Bootstrap = Bootstrap()) -> dict[str, Metric]:
    """Compute token and word perplexity, and bits per character and byte.

    Each row of `counts` holds the COLUMNS of one part of the text: the summed loss in nats, and the
    numbers of tokens, words, characters and bytes. Parts are resampled, not tokens.

    >>> counts = np.array([[3 * math.log(2), 3, 1, 6, 12], [5 * math.log(2), 1, 1, 2, 4]])
    >>> {name: round(metric.value, 6) for name, metric in language_model_metrics(counts).items()}
    {'token_perplexity': 4.0, 'word_perplexity': 16.0, 'bits_per_character': 1.0, \
'bits_per_byte': 0.5}
    """
    counts = counts[counts[:, COLUMNS.index("tokens")] > 0]
    if not len(counts):
        raise InputError("There are no tokens to score: give a longer text.")
    columns = {name: counts[:, i] for i, name in enumerate(COLUMNS)}

    def score(weights: Weights) -> dict[str, Floats]:
        nats = weights @ columns["nats"]
        return {name: divide(nats, weights @ columns[unit]) for name, (unit, _) in UNITS.items()}

    found = estimate(score, len(counts), bootstrap)
    return {name: scaled(metric, UNITS[name][1]) for name, metric in found.items()}


def perplexity(
    losses: ArrayLike, counts: ArrayLike, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute perplexity from each document's summed loss (nats) and number of tokens.

    >>> round(perplexity([2 * math.log(10), 2 * math.log(1000)], [2, 2])["perplexity"].value, 6)
    100.0
    """
    nats, tokens = finite_numbers(losses, "loss"), finite_numbers(counts, "count")
    check_pairs(nats, tokens)
    rows = np.stack([nats, tokens] + [tokens] * (len(COLUMNS) - 2), axis=1)
    return {"perplexity": language_model_metrics(rows, bootstrap)["token_perplexity"]}


def scaled(metric: Metric, is_perplexity: bool) -> Metric:
    """Convert nats per unit to a perplexity or to bits."""

    def scale(nats: float) -> float:
        return math.exp(min(nats, MAX_NATS)) if is_perplexity else nats * BITS_PER_NAT

    if metric.low is None or metric.high is None:
        return replace(metric, value=scale(metric.value))
    return Metric(value=scale(metric.value), low=scale(metric.low), high=scale(metric.high))


@dataclass(frozen=True, kw_only=True)
class Proportion(Metric):
    """A mean of outcomes with its standard error."""

    error: float | None  # None if all outcomes are the same


def proportions(
    columns: Mapping[Name, ArrayLike], bootstrap: Bootstrap = Bootstrap()
) -> dict[Name, Proportion]:
    """Compute the mean and the standard error of each column of outcomes.

    >>> found = proportions({"a": [1, 1, 0.5, 0]})["a"]
    >>> found.value, found.error
    (0.625, 0.23935677693908453)
    """
    found, metrics = {}, means(columns, bootstrap)
    for name, column in columns.items():
        outcomes = np.asarray(column, dtype=np.float64)
        differ = outcomes.min() < outcomes.max()
        error = float(outcomes.std(ddof=1) / math.sqrt(len(outcomes))) if differ else None
        found[name] = Proportion(**asdict(metrics[name]), error=error)
    return found


def preferences(good: ArrayLike, bad: ArrayLike) -> Floats:
    """Score pairs: 1 if the good sentence is likelier, 0 if the bad one is, 0.5 for a tie.

    >>> preferences([-3.0, -5.0, -4.0], [-4.0, -4.0, -4.0]).tolist()
    [1.0, 0.0, 0.5]
    """
    return (np.sign(np.asarray(good, np.float64) - np.asarray(bad, np.float64)) + 1) / 2


def mean_metric(metrics: Sequence[Metric]) -> Metric:
    """Compute the unweighted mean of metrics on different datasets.

    The interval is that of a mean of independent values: deviations add up in quadrature.

    >>> mean_metric([Metric(value=0.5, low=0.2, high=0.9), Metric(value=0.75, low=0.35, high=1.05)])
    Metric(value=0.625, low=0.375, high=0.875, reason='')
    """
    mean = sum(metric.value for metric in metrics) / len(metrics)
    if any(metric.low is None for metric in metrics):
        return Metric(value=mean, low=None, high=None, reason=NO_MEAN_INTERVAL)
    ends = [(f.value - (f.low or 0.0), (f.high or 0.0) - f.value) for f in metrics]
    below, above = np.sqrt((np.array(ends) ** 2).sum(0)) / len(ends)
    return Metric(value=mean, low=mean - float(below), high=mean + float(above))
