"""Metrics of classification, multi-label classification and regression.

Every function takes gold and predicted values and returns named metrics with intervals; values
equal those of scikit-learn and SciPy. An undefined metric (no predictions, no gold labels, a
constant) is 0, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from firth.metrics.bootstrap import (
    Bootstrap,
    Metric,
    Weights,
    check_pairs,
    divide,
    estimate,
    finite_numbers,
    means,
    plain,
    tally,
)
from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.rng import Floats, Longs

Values = Sequence[Any] | NDArray[Any]

_ROUNDING = 1e-14  # variance below this fraction of the mean square: a constant with rounding error


def accuracy(
    gold: Values, predicted: Values, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute the fraction of correct predictions.

    >>> accuracy(["yes", "no", "no", "yes"], ["yes", "no", "yes", "yes"])["accuracy"].interval
    '0.3006 to 0.9544'
    """
    check_pairs(gold, predicted)
    right = [a == b for a, b in zip(plain(gold), plain(predicted), strict=True)]
    return means({"accuracy": right}, bootstrap)


def classification_metrics(
    gold: Values,
    predicted: Values,
    labels: Sequence[Hashable],
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Metric]:
    """Compute accuracy, macro_f1, micro_f1, matthews and, for two labels, f1 of the second one.

    A prediction that is not in ``labels`` is wrong. As in scikit-learn, macro_f1 is the mean over
    the labels that occur, and matthews (Gorodkin 2004) is 0 if all gold or all predicted labels are
    the same.

    >>> metrics = classification_metrics([1, 1, 0, 0], [1, 0, 0, 0], labels=[0, 1])
    >>> {name: round(metric.value, 3) for name, metric in metrics.items()}
    {'accuracy': 0.75, 'macro_f1': 0.733, 'micro_f1': 0.75, 'matthews': 0.577, 'f1': 0.667}
    """
    check_pairs(gold, predicted)
    index = _index(labels)
    gold_codes = np.array([_code(index, label) for label in plain(gold)], dtype=np.int64)
    # Predictions outside `labels` become additional classes after the labels.
    classes = dict(index)
    predicted_codes = np.array(
        [classes.setdefault(label, len(classes)) for label in plain(predicted)], dtype=np.int64
    )
    examples, kinds = len(gold_codes), len(classes)
    counts = _counts(gold_codes, predicted_codes, kinds)

    def score(weights: Weights) -> dict[str, Floats]:
        hits, pred, true = counts(weights)  # (resamples, kinds) each
        every = f1_from_counts(hits, pred, true)[:, : len(index)]
        occurring = (pred + true > 0)[:, : len(index)].sum(axis=1)
        of_labels = (side[:, : len(index)].sum(axis=1) for side in (hits, pred, true))
        metrics = {
            "accuracy": hits.sum(axis=1) / examples,
            "macro_f1": divide(every.sum(axis=1), occurring),
            "micro_f1": f1_from_counts(*of_labels),
            "matthews": _matthews(hits, pred, true),
        }
        return {**metrics, "f1": every[:, 1]} if len(index) == 2 else metrics

    # Without other classes micro_f1 is the accuracy.
    proportions = ("accuracy", *(["micro_f1"] if kinds == len(index) else []))
    return estimate(score, examples, bootstrap, width=kinds, proportions=proportions)


def multilabel_metrics(
    gold: Sequence[Collection[Hashable]],
    predicted: Sequence[Collection[Hashable]],
    labels: Sequence[Hashable],
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Metric]:
    """Compute metrics of label sets: exact (the whole set is right), macro_f1 and micro_f1.

    >>> gold, predicted = [{"a", "b"}, set(), {"a"}], [{"a"}, set(), {"b"}]
    >>> metrics = multilabel_metrics(gold, predicted, labels=["a", "b"])
    >>> {name: round(metric.value, 3) for name, metric in metrics.items()}
    {'exact': 0.333, 'macro_f1': 0.333, 'micro_f1': 0.4}
    """
    check_pairs(gold, predicted)
    index = _index(labels)
    pairs = [
        ({_code(index, label) for label in true}, {_code(index, label) for label in pred})
        for true, pred in zip(gold, predicted, strict=True)
    ]
    exact = np.array([true == pred for true, pred in pairs], dtype=np.float64)
    sides = [
        entries([true & pred for true, pred in pairs]),
        entries([pred for _, pred in pairs]),
        entries([true for true, _ in pairs]),
    ]
    sums = [tally(rows, codes, len(index)) for rows, codes in sides]

    def score(weights: Weights) -> dict[str, Floats]:
        hits, pred, true = (total(weights) for total in sums)  # (resamples, labels) each
        return {
            "exact": weights @ exact / len(exact),
            "macro_f1": f1_from_counts(hits, pred, true).mean(axis=1),
            "micro_f1": f1_from_counts(*(side.sum(axis=1) for side in (hits, pred, true))),
        }

    width = max(len(index), *(len(rows) for rows, _ in sides))
    return estimate(score, len(pairs), bootstrap, width=width, proportions=["exact"])


def regression_metrics(
    gold: ArrayLike, predicted: ArrayLike, bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute pearson, spearman (ties share their mean rank) and rmse.

    A correlation with a constant is 0.

    >>> metrics = regression_metrics([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 4.0, 3.0])
    >>> {name: round(metric.value, 3) for name, metric in metrics.items()}
    {'pearson': 0.8, 'spearman': 0.8, 'rmse': 0.707}
    """
    x, y = finite_numbers(gold, "gold value"), finite_numbers(predicted, "prediction")
    check_pairs(x, y)
    if not len(x):
        raise InputError("There are no examples to score: give at least one.")
    scale = max(np.abs(x).max(), np.abs(y).max()) or 1.0
    squares = (x / scale - y / scale) ** 2  # scaled first, so that no square overflows
    moments = _moments(x, y)
    ranks_x, ranks_y = _ranks(x), _ranks(y)

    def score(weights: Weights) -> dict[str, Floats]:
        return {
            "pearson": _pearson(weights @ moments / len(moments)),
            "spearman": _spearman(weights, ranks_x(weights), ranks_y(weights)),
            "rmse": np.sqrt(weights @ squares / len(squares)) * scale,
        }

    return estimate(score, len(x), bootstrap)


# --- labels -------------------------------------------------------------------------------------


def f1_from_counts(hits: Floats, pred: Floats, true: Floats) -> Floats:
    """Compute F1, the harmonic mean of precision (hits / pred) and recall (hits / true).

    >>> f1_from_counts(np.array([1.0]), np.array([1.0]), np.array([2.0])).round(3).tolist()
    [0.667]
    """
    return divide(2 * hits, pred + true)


def entries(sets: Sequence[Collection[int]]) -> tuple[Longs, Longs]:
    """Convert sets of groups to the two arrays of `tally`: example index and group.

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
    """Make a function that counts, per class, correct predictions, predictions and gold labels."""
    rows, right = np.arange(len(gold)), np.flatnonzero(gold == predicted)
    hits = tally(right, gold[right], kinds)
    pred, true = tally(rows, predicted, kinds), tally(rows, gold, kinds)
    return lambda weights: (hits(weights), pred(weights), true(weights))


def _matthews(hits: Floats, pred: Floats, true: Floats) -> Floats:
    """Compute the Matthews correlation from counts; all but the square root is exact."""
    total = true.sum(axis=1)
    together = hits.sum(axis=1) * total - (pred * true).sum(axis=1)
    spreads = [total**2 - (side**2).sum(axis=1) for side in (pred, true)]
    return divide(together, np.sqrt(spreads[0]) * np.sqrt(spreads[1]))


def _index(labels: Sequence[Hashable]) -> dict[Hashable, int]:
    index = {label: number for number, label in enumerate(plain(labels))}
    if not index or len(index) < len(labels):
        raise UsageError(f"Labels must be different and at least one; these are {_listed(labels)}.")
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


def _moments(x: Floats, y: Floats) -> Floats:
    """Compute x, y, x², y² and xy of each example, (examples, 5), after centering and scaling.

    Centered at the median, the mean of a resample stays near 0 compared with its standard
    deviation, with or without outliers, so that `_pearson` loses no precision by cancellation.
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
    """Make a function that computes centered ranks in each resample; ties share their mean rank.

    Weights do not change the order of values, so values are sorted only once: a rank is the summed
    weight of all smaller values.
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
