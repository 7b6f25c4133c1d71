"""Classification, multi-label and regression metrics: examples by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firth.metrics.bootstrap import Bootstrap, Metric, resample
from firth.metrics.classification import (
    accuracy,
    classification_metrics,
    multilabel_metrics,
    regression_metrics,
)
from firth.utils.errors import InputError, MismatchError, UsageError


def values(metrics: dict[str, Metric]) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def test_binary_classification_by_hand() -> None:
    """2 of 3 yes are predicted, and 1 of 4 no is predicted as yes: precision 2/3, recall 2/3."""
    gold = ["yes", "yes", "yes", "no", "no", "no", "no"]
    predicted = ["yes", "yes", "no", "yes", "no", "no", "no"]
    found = values(classification_metrics(gold, predicted, ["no", "yes"]))
    assert found["accuracy"] == found["micro_f1"] == pytest.approx(5 / 7)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 3 / 4) / 2)
    assert found["matthews"] == pytest.approx((2 * 3 - 1 * 1) / math.sqrt(3 * 3 * 4 * 4))
    assert accuracy(gold, predicted)["accuracy"].value == pytest.approx(5 / 7)


def test_positive_label() -> None:
    gold, predicted = [0, 0, 0, 1], [0, 0, 1, 1]
    assert classification_metrics(gold, predicted, [0, 1])["f1"].value == pytest.approx(2 / 3)
    assert classification_metrics(gold, predicted, [1, 0])["f1"].value == pytest.approx(4 / 5)
    assert "f1" not in classification_metrics(gold, predicted, [0, 1, 2])


def test_predictions_outside_the_labels_are_wrong() -> None:
    """A generated answer need not be a label; it lowers recall, not precision."""
    found = values(classification_metrics(["a", "a", "b"], ["a", "??", "b"], ["a", "b"]))
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["micro_f1"] == pytest.approx(4 / 5)


def test_arrays_and_lists() -> None:
    gold, predicted = [0, 1, 2, 1], [0, 1, 1, 1]
    arrays = classification_metrics(np.array(gold), np.array(predicted), np.arange(3))
    assert arrays == classification_metrics(gold, predicted, range(3))
    assert accuracy(np.array(gold), predicted) == accuracy(gold, np.array(predicted))


def test_multilabel_by_hand() -> None:
    """a: 1 correct, 1 missed; b: 1 correct, 1 too many; c does not occur and counts 0."""
    gold, predicted = [{"a", "b"}, {"a"}, set()], [{"a", "b"}, {"b"}, set()]
    found = values(multilabel_metrics(gold, predicted, ["a", "b", "c"]))
    assert found["exact"] == pytest.approx(2 / 3)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)


def test_regression_by_hand() -> None:
    """Ranks 1 2 3 4 5 against 1 2 3.5 3.5 5 (two share): ρ = 9.5 / sqrt(10 · 9.5)."""
    found = values(regression_metrics([10, 20, 30, 40, 50], [1, 2, 3, 3, 9]))
    assert found["spearman"] == pytest.approx(9.5 / math.sqrt(10 * 9.5))
    assert found["pearson"] == pytest.approx(170 / math.sqrt(1000 * 39.2))
    errors = [9, 18, 27, 37, 41]
    assert found["rmse"] == pytest.approx(math.sqrt(sum(e * e for e in errors) / 5))


def test_correlation_with_a_constant_is_0() -> None:
    for constant in (0.0, 0.1, 1e9):
        found = regression_metrics([1.0, 2.0, 3.0], [constant] * 3)
        assert found["pearson"] == found["spearman"]
        assert (found["pearson"].value, found["pearson"].low) == (0.0, None)
    # Of two examples, half of the resamples hold one of them twice.
    assert regression_metrics([1, 2], [1, 2])["pearson"] == Metric(value=1.0, low=0.0, high=1.0)


def test_constant_resamples_are_detected_despite_rounding() -> None:
    rng = np.random.default_rng(0)
    constants = 0
    for seed in range(300):
        once, numbers = Bootstrap(resamples=1, seed=seed), rng.normal(size=3)
        constant = next(iter(resample(3, once))).max() == 3
        low = regression_metrics(numbers, numbers, once)["pearson"].low
        assert low == (0 if constant else None), seed  # both correlations are 1
        constants += constant
    assert constants > 20


def test_extreme_numbers() -> None:
    for numbers in ([1e300, -1e300, 3e299], [5e-324, 0, 0]):
        assert regression_metrics(numbers, numbers)["pearson"].value == pytest.approx(1)
    # Without the outlier, as in a third of the resamples, the rest correlates perfectly.
    line = [*range(50), 1e12]
    assert regression_metrics(line, [*range(50), 0])["pearson"].high == pytest.approx(1.0)


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(MismatchError, match="'c' is none of 'a', 'b'"):
        classification_metrics(["a", "c"], ["a", "b"], ["a", "b"])
    with pytest.raises(MismatchError, match="2 gold values but 1 predictions"):
        classification_metrics(["a", "b"], ["a"], ["a", "b"])
    with pytest.raises(UsageError, match="must be different and at least one; these are 'a', 'a'"):
        classification_metrics(["a"], ["a"], ["a", "a"])
    with pytest.raises(UsageError, match="must be different and at least one; these are none"):
        multilabel_metrics([set()], [set()], [])
    with pytest.raises(MismatchError, match=r"77 is none of 0, 1, .*, 9, …"):
        multilabel_metrics([{0}], [{77}], range(20))
    with pytest.raises(InputError, match="prediction of example 2 is nan"):
        regression_metrics([1, 2], [1, math.nan])
    with pytest.raises(InputError, match="Each gold value must be a number"):
        regression_metrics(["high"], [1])
    with pytest.raises(InputError, match="no examples"):
        regression_metrics([], [])
