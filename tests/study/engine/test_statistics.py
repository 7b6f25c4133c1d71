"""Intervals of studies, against other libraries and hand calculations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, t
from sklearn.isotonic import IsotonicRegression

from firth.metrics.bootstrap import Metric
from firth.study.engine.statistics import (
    Difference,
    Scores,
    difference,
    holm,
    score_values,
    unpaired_difference,
)
from firth.study.monotone import isotonic, labels_needed


def made_up(seeds: int, examples: int, mean: float, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    right = (rng.random((seeds, examples)) < mean).astype(float)
    return Scores(right, np.ones_like(right))


def test_one_seed_gives_the_usual_interval_of_a_proportion() -> None:
    scores = made_up(1, 2000, 0.7)
    found = scores.metric()
    half = norm.ppf(0.975) * np.sqrt(found.value * (1 - found.value) / 2000)
    assert found.low == pytest.approx(found.value - half, abs=0.003)
    assert found.high == pytest.approx(found.value + half, abs=0.003)


def test_seeds_that_differ_widen_the_interval() -> None:
    rates = np.array([0.5, 0.6, 0.7, 0.8, 0.9])
    right = np.tile(rates[:, None], (1, 400))  # no variance between examples
    found = Scores(right, np.ones_like(right)).metric()
    half = t.ppf(0.975, 4) * rates.std(ddof=1) / np.sqrt(5)  # Student's t of five seeds
    assert found.value == pytest.approx(0.7)
    assert found.low == pytest.approx(0.7 - half, abs=0.03)
    assert found.high == pytest.approx(0.7 + half, abs=0.03)


def test_a_ratio_of_sums_is_not_a_mean_of_ratios() -> None:
    f1 = Scores.of([score_values([2, 0, 4], [4, 2, 4])])  # 2 tp over predicted and true entities
    assert f1.value == pytest.approx(6 / 10)


def test_differences_are_paired() -> None:
    first = made_up(3, 300, 0.6)
    better = first.numerators.copy()
    better[:, :15] = 1.0  # the same predictions but for fifteen examples
    found = difference(Scores(better, first.denominators), first)
    unpaired = difference(made_up(3, 300, 0.62, seed=1), first)
    assert found.holds
    assert found.metric.high - found.metric.low < (unpaired.metric.high - unpaired.metric.low) / 2


def test_equal_scores_cannot_be_told_apart() -> None:
    assert difference(made_up(5, 200, 0.7), made_up(5, 200, 0.7, seed=1)).holds is None
    assert difference(made_up(5, 200, 0.7), made_up(5, 200, 0.7)).p == 1.0


def test_fractions_differ_by_at_most_one() -> None:
    wide = Scores(np.array([[1.0] * 9, [0.0] * 9]), np.ones((2, 9)))
    metric = difference(wide, Scores(np.zeros((2, 9)), np.ones((2, 9)))).metric
    assert (metric.low, metric.value, metric.high) == (-1, 0.5, 1)


def test_holm_by_hand() -> None:
    metric = Metric(value=1.0, low=0.5, high=1.5)
    found = holm(
        {n: Difference(metric, p) for n, p in zip("abcd", (0.01, 0.04, 0.03, 0.005), strict=True)}
    )
    expected = {"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02}  # 3, 1 (raised), 2 and 4 times
    assert {name: each.p for name, each in found.items()} == pytest.approx(expected)
    assert found["b"].holds is None
    assert list(found) == list("abcd")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_isotonic_regression(values: list[float]) -> None:
    expected = IsotonicRegression().fit_transform(np.arange(len(values)), values)
    np.testing.assert_allclose(isotonic(np.array([values]))[0], expected, atol=1e-12)


def test_labels_needed() -> None:
    curve = np.array([0.5, 0.7, 0.7, 0.9])
    counts = [10, 100, 1000, 10_000]
    assert labels_needed(counts, curve, 0.6) == pytest.approx(10**1.5)
    assert labels_needed(counts, curve, 0.7) == 100
    assert labels_needed(counts, curve, 0.8) == pytest.approx(10**3.5)
    assert labels_needed(counts, curve, 0.91) == np.inf
    assert labels_needed(counts, curve, 0.4) == 0


@pytest.mark.parametrize("seeds", [3, 5])
def test_few_seeds_do_not_decide_too_often(seeds: int) -> None:
    """Without a true difference, about one in twenty comparisons may be decided."""
    rng, decided = np.random.default_rng(0), 0
    for _ in range(100):
        rates = np.clip(rng.normal(0.8, 0.08, (2, seeds, 1)), 0, 1)  # seeds differ much
        right = (rng.random((2, seeds, 100)) < rates).astype(float)
        one, other = (Scores(each, np.ones_like(each)) for each in right)
        decided += difference(one, other).holds is not None
    assert decided <= 10


def test_seeds_that_failed_are_left_out_of_a_comparison() -> None:
    both = np.tile(np.array([0.2, 0.5, 0.8])[:, None], (1, 50))
    ones = np.ones((2, 50))
    first, second = Scores(both[1:], ones, (1, 2)), Scores(both[:2], ones, (0, 1))
    found = difference(first, second)  # equal at seed 1, the only one that both have
    assert found.metric.value == 0
    assert found.holds is None


def test_perfect_scores_have_an_interval() -> None:
    right = Scores(np.ones((3, 26)), np.ones((3, 26)))
    assert right.metric().low == pytest.approx(0.871, abs=0.001)  # Wilson's
    found = difference(right, right)
    assert (found.metric.low, found.metric.high) == pytest.approx((-3 / 26, 3 / 26))
    assert found.holds is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_decide_nothing(value: float) -> None:
    one = Scores(np.full((3, 5), value), np.ones((3, 5)))
    found = difference(one, made_up(3, 5, 0.5))
    assert found.holds is None
    assert found.metric.low is None


def test_scores_of_different_examples_are_not_paired() -> None:
    half = np.tile(np.repeat([1.0, 0.0], 50), (3, 1))  # ordered alike, by chance
    first = Scores(half, np.ones_like(half))
    found = unpaired_difference(first, Scores(half.copy(), np.ones_like(half)))
    expected = norm.ppf(0.975) * np.sqrt(2 * 0.25 / 100)
    assert found.metric.high == pytest.approx(expected, abs=0.02)
