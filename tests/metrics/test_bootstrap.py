"""Bootstrap intervals: resampling, width and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from firth.metrics.bootstrap import (
    Bootstrap,
    Metric,
    check_pairs,
    estimate,
    means,
    resample,
    tally,
    to_json,
)
from firth.utils.errors import InputError, MismatchError, UsageError


def weights(examples: int, resamples: int, seed: int = 0, width: int = 0) -> np.ndarray:
    blocks = resample(examples, Bootstrap(resamples=resamples, seed=seed), width)
    return np.concatenate(list(blocks))


def test_resamples_are_drawn_with_replacement() -> None:
    """Each is drawn Binomial(n, 1/n) times, so 0, 1, 2 … as often as that distribution says."""
    drawn = weights(50, 2000)
    assert drawn.shape == (2000, 50)
    assert (drawn.sum(axis=1) == 50).all()
    assert np.abs(drawn.mean(axis=0) - 1).max() < 5 * np.sqrt(1 / 2000)
    shares = np.bincount(drawn.astype(int).ravel())[:6] / drawn.size
    assert shares == pytest.approx(stats.binom.pmf(range(6), 50, 1 / 50), abs=0.005)


def test_resamples_depend_on_the_seed_only() -> None:
    assert (weights(70, 40) == weights(70, 40, width=10**6)).all()  # one resample at a time
    assert (weights(70, 40)[:7] == weights(70, 7)).all()
    assert (weights(70, 40) != weights(70, 40, seed=1)).any()
    assert len(np.unique(weights(70, 40), axis=0)) == 40


def test_memory_is_bounded() -> None:
    first = next(iter(resample(10, Bootstrap(resamples=10**9))))
    assert first.size <= 1 << 16
    assert len(next(iter(resample(10, Bootstrap(), width=10**7)))) == 1


def test_interval_equals_that_of_a_plain_loop() -> None:
    """Compare with NumPy's generator, up to the noise of 4,000 resamples, and with theory."""
    values = np.random.default_rng(1).exponential(size=300)
    metric = means({"mean": values}, Bootstrap(resamples=4000))["mean"]
    rng = np.random.default_rng(2)
    loop = [values[rng.integers(0, 300, 300)].mean() for _ in range(4000)]
    assert metric.value == pytest.approx(values.mean())
    ends = np.percentile(loop, [2.5, 97.5])
    assert (metric.low, metric.high) == pytest.approx(tuple(ends), abs=0.02)
    error = values.std() / np.sqrt(300)
    assert (metric.high - metric.low) / (2 * 1.96 * error) == pytest.approx(1, abs=0.05)


def test_intervals_have_a_coverage_of_95_percent() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for seed in range(200):
        right = rng.random(150) < 0.7
        metric = means({"p": right}, Bootstrap(resamples=300, seed=seed))["p"]
        held += metric.low <= 0.7 <= metric.high
    assert 180 <= held <= 198


def test_intervals_contain_the_value() -> None:
    """The fraction of distinct values is 1, but about 0.63 in any resample."""

    def distinct(weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"fraction": (weights > 0).mean(axis=1)}

    metric = estimate(distinct, 100)["fraction"]
    assert (metric.value, metric.high) == (1.0, 1.0)
    assert 0.5 < metric.low < 0.64


def test_interval_of_one_example() -> None:
    found = means({"x": [3]})["x"]
    assert found == Metric(value=3.0, low=None, high=None, reason=found.reason)
    assert found.reason in found.interval
    assert to_json(found) == {"value": 3.0, "low": None, "high": None, "reason": found.reason}


def test_proportions_near_0_or_1_have_a_wilson_interval() -> None:
    """By hand, z² = 3.8415: 20 of 20 is (20 / 23.8415, 1); 1 of 10 has its centre at 0.2111."""
    found = means({"all": [1] * 20, "none": [0] * 20})
    assert found["all"].interval == "0.8389 to 1.0000"
    assert found["none"].interval == "0.0000 to 0.1611"
    assert means({"exact": [100] + [0] * 9}, scale=100)["exact"].interval == "1.7876 to 40.4150"
    for right, count in ((0, 3), (9, 9), (9, 200), (3, 7)):
        metric = means({"p": [1] * right + [0] * (count - right)})["p"]
        theirs = stats.binomtest(right, count).proportion_ci(method="wilson")
        assert (metric.low, metric.high) == pytest.approx(tuple(theirs), abs=1e-6)


def test_equal_scores_that_are_no_proportion_have_no_interval() -> None:
    found = means({"loss": [0.5] * 20})["loss"]
    assert found.low is found.high is None
    assert found.reason
    assert means({"rouge2": [0.0] * 20}, graded=True)["rouge2"].low is None


def test_tally() -> None:
    rows, groups = np.array([0, 0, 1, 3, 3]), np.array([4, 4, 0, 4, 1])
    weights = np.array([[1.0, 1, 1, 1], [0, 3, 1, 0], [2, 0, 0, 2]])
    expected = [[1, 1, 0, 0, 3], [3, 0, 0, 0, 0], [0, 2, 0, 0, 6]]
    assert tally(rows, groups, 5)(weights).tolist() == expected
    none = np.array([], dtype=np.int64)
    assert tally(none, none, 2)(weights).tolist() == [[0, 0]] * 3


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(InputError, match="no examples to score"):
        means({"x": []})
    with pytest.raises(MismatchError, match="There are 3 gold values but 2 predictions"):
        check_pairs("abc", "ab")
    with pytest.raises(UsageError, match="at least one resample, not 0"):
        Bootstrap(resamples=0)
