"""Language-model metrics, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from firth.metrics.bootstrap import Metric
from firth.metrics.language_modelling import (
    language_model_metrics,
    mean_metric,
    perplexity,
    preferences,
    proportions,
)
from firth.utils.errors import InputError


def test_perplexity_and_bits_per_character() -> None:
    """Two parts of 3 and 5 tokens at 4 bits each: 32 bits in all."""
    nats = 4 * math.log(2)
    counts = np.array([[3 * nats, 3, 2, 7, 9], [5 * nats, 5, 2, 9, 23], [0, 0, 5, 1, 1]])
    found = language_model_metrics(counts)
    assert found["token_perplexity"].value == pytest.approx(16.0)
    assert found["word_perplexity"].value == pytest.approx(2 ** (32 / 4))
    assert found["bits_per_character"].value == pytest.approx(32 / 16)
    assert found["bits_per_byte"].value == pytest.approx(32 / 32)
    # All tokens have the same loss, so resampling does not change the token perplexity.
    assert found["token_perplexity"].low is found["token_perplexity"].high is None
    # A resample may contain one part twice: 5 tokens for 2 words, or 3 for 2.
    words = found["word_perplexity"]
    assert (words.low, words.high) == pytest.approx((2 ** (12 / 2), 2 ** (20 / 2)))


def test_perplexity_weights_documents_by_tokens() -> None:
    """3 tokens at 1/2 and 1 at 1/16: (2³ · 16)^(1/4) = 128^(1/4)."""
    found = perplexity([3 * math.log(2), math.log(16)], [3, 1])["perplexity"]
    assert found.value == pytest.approx(128**0.25)
    assert (found.low, found.high) == pytest.approx((2, 16))
    assert perplexity([math.log(4), 0.0], [1, 0]) == perplexity([math.log(4)], [1])


def test_huge_losses_are_finite() -> None:
    found = language_model_metrics(np.array([[1e6, 1, 1, 1, 1]]))
    assert math.isfinite(found["token_perplexity"].value)
    assert found["bits_per_byte"].value == pytest.approx(1e6 / math.log(2))
    with pytest.raises(InputError, match="no tokens to score"):
        language_model_metrics(np.zeros((3, 5)))
    with pytest.raises(InputError, match="loss of example 2 is nan"):
        perplexity([1, math.nan], [1, 1])


def test_standard_error_of_proportions() -> None:
    outcomes = preferences([-1.0, -2.0, -3.0, -4.0], [-2.0, -2.0, -1.0, -9.0])
    assert outcomes.tolist() == [1.0, 0.5, 0.0, 1.0]
    rate = proportions({"accuracy": outcomes})["accuracy"]
    mean = 2.5 / 4
    variance = sum((x - mean) ** 2 for x in (1, 0.5, 0, 1)) / 3
    assert rate.value == mean
    assert rate.error == pytest.approx(math.sqrt(variance / 4))
    certain = proportions({"accuracy": [1.0]})["accuracy"]
    assert certain.error is None
    assert certain.interval == "0.2065 to 1.0000"  # 1 / (1 + z²)


def test_mean_of_independent_metrics() -> None:
    """The mean of metrics with standard errors 0.03 and 0.04 has one of 0.05 / 2."""
    parts = [
        Metric(value=v, low=v - 1.96 * s, high=v + 1.96 * s) for v, s in ((1, 0.03), (2, 0.04))
    ]
    found = mean_metric(parts)
    assert found.value == pytest.approx(1.5)
    assert found.high - found.value == pytest.approx(1.96 * 0.025)
    assert found.value - found.low == pytest.approx(1.96 * 0.025)
    unknown = mean_metric([*parts, Metric(value=0.0, low=None, high=None, reason="one example")])
    assert (unknown.value, unknown.low) == (1.0, None)
    assert unknown.reason
