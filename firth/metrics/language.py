"""What a language model's probabilities are worth: of running text, and of pairs of sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from firth.draws import Floats
from firth.errors import InputError
from firth.metrics.bootstrap import Bootstrap, Figure, Weights, divide, estimate, means

Name = TypeVar("Name", bound=str)

# What is counted in a part of a text.
COLUMNS = ("nats", "tokens", "words", "characters", "bytes")
BITS = 1 / math.log(2)  # in a nat
LARGEST = 700.0  # nats whose exponential is still a number
# A figure -> what the nats are divided by, and whether it is a perplexity or a number of bits.
LANGUAGE = {
    "token_perplexity": ("tokens", True),
    "word_perplexity": ("words", True),
    "bits_per_character": ("characters", False),
    "bits_per_byte": ("bytes", False),
}


def language(counts: Floats, bootstrap: Bootstrap = Bootstrap()) -> dict[str, Figure]:
    """Perplexity of tokens and words, bits for each character and byte, of the parts of a text.

    Row by row, `counts` has a part's COLUMNS: the loss of its tokens in nats, how many they are,
    and how many words, characters and bytes the part has. Parts are resampled, not tokens.

    >>> counts = np.array([[3 * math.log(2), 3, 1, 6, 12], [5 * math.log(2), 1, 1, 2, 4]])
    >>> {name: round(figure.value, 6) for name, figure in language(counts).items()}
    {'token_perplexity': 4.0, 'word_perplexity': 16.0, 'bits_per_character': 1.0, \
'bits_per_byte': 0.5}
    """
    counts = counts[counts[:, COLUMNS.index("tokens")] > 0]
    if not len(counts):
        raise InputError("There are no tokens to score: give a text with at least two.")
    columns = {name: counts[:, i] for i, name in enumerate(COLUMNS)}

    def score(weights: Weights) -> dict[str, Floats]:
        nats = weights @ columns["nats"]
        return {name: divide(nats, weights @ columns[unit]) for name, (unit, _) in LANGUAGE.items()}

    found = estimate(score, len(counts), bootstrap)
    return {name: scaled(figure, LANGUAGE[name][1]) for name, figure in found.items()}


def scaled(figure: Figure, is_perplexity: bool) -> Figure:
    """Nats for each of something, as a perplexity or as bits."""

    def scale(nats: float) -> float:
        return math.exp(min(nats, LARGEST)) if is_perplexity else nats * BITS

    return Figure(value=scale(figure.value), low=scale(figure.low), high=scale(figure.high))


@dataclass(frozen=True, kw_only=True)
class Rate(Figure):
    """How often something holds, with its standard error."""

    error: float


def rates(
    columns: Mapping[Name, ArrayLike], bootstrap: Bootstrap = Bootstrap()
) -> dict[Name, Rate]:
    """The mean of each column of outcomes, with the standard error that a sample of so many has.

    >>> {name: (rate.value, rate.error) for name, rate in rates({"a": [1, 1, 0.5, 0]}).items()}
    {'a': (0.625, 0.23935677693908453)}
    """
    found, figures = {}, means(columns, bootstrap)
    for name, column in columns.items():
        outcomes = np.asarray(column, dtype=np.float64)
        several = len(outcomes) > 1
        error = float(outcomes.std(ddof=1) / math.sqrt(len(outcomes))) if several else 0.0
        figure = figures[name]
        found[name] = Rate(value=figure.value, low=figure.low, high=figure.high, error=error)
    return found


def preferences(good: ArrayLike, bad: ArrayLike) -> Floats:
    """1 where the good one of a pair is likelier, 0 where the bad one is, a half where neither is.

    >>> preferences([-3.0, -5.0, -4.0], [-4.0, -4.0, -4.0]).tolist()
    [1.0, 0.0, 0.5]
    """
    return (np.sign(np.asarray(good, np.float64) - np.asarray(bad, np.float64)) + 1) / 2


def mean_of(figures: Sequence[Figure]) -> Figure:
    """The plain mean of figures of different data, each counting the same.

    Its interval is that of a mean of independent figures: their deviations add up as squares.

    >>> mean_of([Figure(value=0.5, low=0.2, high=0.9), Figure(value=0.75, low=0.35, high=1.05)])
    Figure(value=0.625, low=0.375, high=0.875)
    """
    values = np.array([[f.value, f.value - f.low, f.high - f.value] for f in figures])
    mean = float(values[:, 0].mean())
    below, above = np.sqrt((values[:, 1:] ** 2).sum(0)) / len(values)
    return Figure(value=mean, low=mean - float(below), high=mean + float(above))
