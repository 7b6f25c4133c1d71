"""What predictions are worth: labels, sets of labels, numbers and the likelihood of text.

Every function takes gold and predicted values and gives named figures, each equal to what the
field's library gives (scikit-learn, SciPy) and each with an interval. Where a metric is undefined
(nothing predicted, nothing to predict, a constant) it is 0, as in scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firth.draws import Floats, Longs
from firth.errors import InputError, MismatchError, Misuse
from firth.metrics.bootstrap import (
    Bootstrap,
    Figure,
    Weights,
    check_pairs,
    divide,
    estimate,
    means,
    plain,
    tally,
)

Values = Sequence[Any] | NDArray[Any]

_ROUNDING = 1e-14  # a variance below this share of the squares is that of a constant, rounded


def accuracy(
    gold: Values, predicted: Values, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Figure]:
    """The share of predictions that are right.

    >>> accuracy(["yes", "no", "no", "yes"], ["yes", "no", "yes", "yes"])
    {'accuracy': Figure(value=0.75, low=0.25, high=1.0)}
    """
    check_pairs(gold, predicted)
    right = [a == b for a, b in zip(plain(gold), plain(predicted), strict=True)]
    return means({"accuracy": right}, bootstrap)


def classification(
    gold: Values,
    predicted: Values,
    labels: Sequence[Hashable],
    *,
    positive: Hashable | None = None,
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Figure]:
    """Accuracy, macro_f1, micro_f1 and matthews; of two labels also f1, that of the positive one.

    The positive label is ``positive``, or else the second of two. A prediction that is no label is
    wrong. As in scikit-learn, macro_f1 is the mean over the labels that occur, and matthews
    (Gorodkin 2004) is 0 when either side has one label only.

    >>> figures = classification([1, 1, 0, 0], [1, 0, 0, 0], labels=[0, 1])
    >>> {name: round(figure.value, 3) for name, figure in figures.items()}
    {'accuracy': 0.75, 'macro_f1': 0.733, 'micro_f1': 0.75, 'matthews': 0.577, 'f1': 0.667}
    """
    check_pairs(gold, predicted)
    index = _index(labels)
    if positive is None and len(index) == 2:
        positive = labels[1]
    if positive is not None and positive not in index:
        raise Misuse(f"The positive label {positive!r} is none of {_listed(index)}.")
    gold_codes = np.array([_code(index, label) for label in plain(gold)], dtype=np.int64)
    # Predictions that are no label become classes of their own, behind the labels.
    classes = dict(index)
    predicted_codes = np.array(
        [classes.setdefault(label, len(classes)) for label in plain(predicted)], dtype=np.int64
    )
    examples, kinds = len(gold_codes), len(classes)
    counts = _counts(gold_codes, predicted_codes, kinds)

    def score(weights: Weights) -> dict[str, Floats]:
        hits, said, true = counts(weights)  # (resamples, kinds) each
        every = f1_of(hits, said, true)[:, : len(index)]
        occurring = (said + true > 0)[:, : len(index)].sum(axis=1)
        of_labels = (side[:, : len(index)].sum(axis=1) for side in (hits, said, true))
        figures = {
            "accuracy": hits.sum(axis=1) / examples,
            "macro_f1": divide(every.sum(axis=1), occurring),
            "micro_f1": f1_of(*of_labels),
            "matthews": _matthews(hits, said, true),
        }
        return figures if positive is None else {**figures, "f1": every[:, index[positive]]}

    return estimate(score, examples, bootstrap, width=kinds)


def multilabel(
    gold: Sequence[Collection[Hashable]],
    predicted: Sequence[Collection[Hashable]],
    labels: Sequence[Hashable],
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Figure]:
    """For sets of labels: exact (the whole set is right), macro_f1 over all labels, micro_f1.

    >>> figures = multilabel([{"a", "b"}, set(), {"a"}], [{"a"}, set(), {"b"}], labels=["a", "b"])
    >>> {name: round(figure.value, 3) for name, figure in figures.items()}
    {'exact': 0.333, 'macro_f1': 0.333, 'micro_f1': 0.4}
    """
    check_pairs(gold, predicted)
    index = _index(labels)
    pairs = [
        ({_code(index, label) for label in true}, {_code(index, label) for label in said})
        for true, said in zip(gold, predicted, strict=True)
    ]
    exact = np.array([true == said for true, said in pairs], dtype=np.float64)
    sides = [
        entries([true & said for true, said in pairs]),
        entries([said for _, said in pairs]),
        entries([true for true, _ in pairs]),
    ]
    sums = [tally(rows, codes, len(index)) for rows, codes in sides]

    def score(weights: Weights) -> dict[str, Floats]:
        hits, said, true = (total(weights) for total in sums)  # (resamples, labels) each
        return {
            "exact": weights @ exact / len(exact),
            "macro_f1": f1_of(hits, said, true).mean(axis=1),
            "micro_f1": f1_of(*(side.sum(axis=1) for side in (hits, said, true))),
        }

    width = max(len(index), *(len(rows) for rows, _ in sides))
    return estimate(score, len(pairs), bootstrap, width=width)


def regression(
    gold: ArrayLike, predicted: ArrayLike, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Figure]:
    """The correlations pearson and spearman (equal values share a rank), and rmse.

    A correlation with a constant is 0.

    >>> figures = regression([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0])
    >>> {name: round(figure.value, 3) for name, figure in figures.items()}
    {'pearson': 0.8, 'spearman': 0.8, 'rmse': 0.707}
    """
    x, y = _numbers(gold, "gold value"), _numbers(predicted, "prediction")
    check_pairs(x, y)
    if not len(x):
        raise InputError("There are no examples to score: give at least one.")
    scale = max(np.abs(x).max(), np.abs(y).max()) or 1.0
    squares = (x / scale - y / scale) ** 2  # scaled first: no square is too large
    moments = _moments(x, y)
    ranks_x, ranks_y = _ranks(x), _ranks(y)

    def score(weights: Weights) -> dict[str, Floats]:
        return {
            "pearson": _pearson(weights @ moments / len(moments)),
            "spearman": _spearman(weights, ranks_x(weights), ranks_y(weights)),
            "rmse": np.sqrt(weights @ squares / len(squares)) * scale,
        }

    return estimate(score, len(x), bootstrap)


def perplexity(
    losses: ArrayLike, counts: ArrayLike, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Figure]:
    """The perplexity of documents, from each one's summed loss (nats) and its count of tokens.

    Documents are resampled, not tokens: those of one document are no independent draws.

    >>> round(perplexity([2 * math.log(10), 2 * math.log(1000)], [2, 2])["perplexity"].value, 6)
    100.0
    """
    nats, tokens = _numbers(losses, "loss"), _numbers(counts, "count")
    check_pairs(nats, tokens)
    nats, tokens = nats[tokens > 0], tokens[tokens > 0]
    if not len(tokens):
        raise InputError("There are no tokens to score: give a text with at least one.")
    figure = estimate(
        lambda weights: {"loss": (weights @ nats) / (weights @ tokens)}, len(nats), bootstrap
    )["loss"]
    return {
        "perplexity": Figure(value=_exp(figure.value), low=_exp(figure.low), high=_exp(figure.high))
    }


# --- labels -------------------------------------------------------------------------------------


def f1_of(hits: Floats, said: Floats, true: Floats) -> Floats:
    """F1 from counts: the harmonic mean of hits / said (precision) and hits / true (recall).

    >>> f1_of(np.array([1.0]), np.array([1.0]), np.array([2.0])).round(3).tolist()
    [0.667]
    """
    return divide(2 * hits, said + true)


def entries(sets: Sequence[Collection[int]]) -> tuple[Longs, Longs]:
    """Sets of groups as two columns for `tally`: whose entry, and which group.

    >>> rows, groups = entries([{2}, set(), {0, 1}])
    >>> rows.tolist(), groups.tolist()
    ([0, 2, 2], [2, 0, 1])
    """
    sizes = np.array([len(members) for members in sets], dtype=np.int64)
    groups = np.array([group for members in sets for group in members], dtype=np.int64)
    return np.repeat(np.arange(len(sets)), sizes), groups


def _counts(
    gold: Longs, predicted: Longs, kinds: int
) -> Callable[[Weights], tuple[Floats, Floats, Floats]]:
    """For each kind: how often it was rightly said, said, and true."""
    rows, right = np.arange(len(gold)), np.flatnonzero(gold == predicted)
    hits = tally(right, gold[right], kinds)
    said, true = tally(rows, predicted, kinds), tally(rows, gold, kinds)
    return lambda weights: (hits(weights), said(weights), true(weights))


def _matthews(hits: Floats, said: Floats, true: Floats) -> Floats:
    """The correlation of gold and predicted kinds; in counts, all but the root is exact."""
    total = true.sum(axis=1)
    together = hits.sum(axis=1) * total - (said * true).sum(axis=1)
    spreads = [total**2 - (side**2).sum(axis=1) for side in (said, true)]
    return divide(together, np.sqrt(spreads[0]) * np.sqrt(spreads[1]))


def _index(labels: Sequence[Hashable]) -> dict[Hashable, int]:
    index = {label: number for number, label in enumerate(plain(labels))}
    if not index or len(index) < len(labels):
        raise Misuse(f"Labels must be different and at least one; these are {_listed(labels)}.")
    return index


def _code(index: dict[Hashable, int], label: Hashable) -> int:
    try:
        return index[label]
    except KeyError:
        raise MismatchError(f"The label {label!r} is none of {_listed(index)}.") from None


def _listed(labels: Collection[Hashable]) -> str:
    shown = [repr(label) for label in labels][:10]
    return ", ".join(shown if len(labels) <= 10 else [*shown, "…"]) or "none"


# --- numbers ------------------------------------------------------------------------------------


def _numbers(values: ArrayLike, what: str) -> Floats:
    try:
        numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"Each {what} must be a number.") from None
    for place in np.flatnonzero(~np.isfinite(numbers)):
        raise InputError(f"The {what} of example {place + 1:,} is {numbers[place]}: no number.")
    return numbers


def _moments(x: Floats, y: Floats) -> Floats:
    """x, y, x², y² and xy of each example (examples, 5), in units in which few are large.

    Counted from the median, the mean of a resample is never far from 0 compared with its spread,
    whether or not it has the outliers: the differences that `_pearson` takes lose nothing.
    """
    x, y = (side / (np.abs(side).max() or 1.0) for side in (x, y))
    x, y = (side - np.median(side) for side in (x, y))
    x, y = (side / (np.abs(side).max() or 1.0) for side in (x, y))
    return np.stack([x, y, x * x, y * y, x * y], axis=1)


def _pearson(means: Floats) -> Floats:
    x, y, xx, yy, xy = means.T  # (resamples,) each
    spreads = [
        np.where(squares - mean**2 > _ROUNDING * squares, squares - mean**2, 0.0)
        for squares, mean in ((xx, x), (yy, y))
    ]
    return _correlation(xy - x * y, *spreads)


def _ranks(values: Floats) -> Callable[[Weights], Floats]:
    """The rank of each value in each resample, from the middle; equal values share theirs.

    Values keep their order however they are weighed, so nothing is sorted again: below a value
    lies the weight of all smaller ones.
    """
    distinct, groups = np.unique(values, return_inverse=True)
    sizes_of = tally(np.arange(len(values)), groups, len(distinct))

    def ranked(weights: Weights) -> Floats:
        sizes = sizes_of(weights)
        middles = np.cumsum(sizes, axis=1) - sizes / 2 - len(values) / 2
        return middles[:, groups]  # (resamples, examples)

    return ranked


def _spearman(weights: Weights, x: Floats, y: Floats) -> Floats:
    weighed = weights * x
    together, of_x = (np.einsum("re,re->r", weighed, side) for side in (y, x))
    return _correlation(together, of_x, np.einsum("re,re->r", weights * y, y))


def _correlation(together: Floats, of_x: Floats, of_y: Floats) -> Floats:
    return np.clip(divide(together, np.sqrt(of_x) * np.sqrt(of_y)), -1.0, 1.0)


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
