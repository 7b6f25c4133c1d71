"""Scaling laws: recovered from made-up losses, and compared with those of Hoffmann et al. 2022."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from firth.study.scaling_law import FLOPS, ScalingLaw, fit_law
from firth.utils.errors import InputError
from firth.utils.rng import Floats

# Hoffmann et al. 2022, equation 10 (appendix D.3).
CHINCHILLA = ScalingLaw(
    irreducible_loss=1.69,
    size_factor=406.4,
    size_exponent=0.34,
    token_factor=410.7,
    token_exponent=0.28,
)
SIZES = np.repeat([1e7, 5e7, 2e8, 1e9], 4)
TOKENS = np.tile([2e8, 1e9, 5e9, 2e10], 4)


def noisy(noise: float, seeds: int) -> list[Floats]:
    rng = np.random.default_rng(0)
    means = CHINCHILLA.loss(SIZES, TOKENS)
    return [mean + noise * rng.standard_normal(seeds) for mean in means]


def test_the_exact_law_is_recovered() -> None:
    found = fit_law(SIZES, TOKENS, noisy(0.0, 1))
    assert found.law.values() == pytest.approx(CHINCHILLA.values(), rel=0.02)
    assert found.metric(lambda law: law.size_exponent).low is None  # one seed
    assert found.undetermined() == []


def test_intervals_cover_the_law_and_the_largest_run() -> None:
    found = fit_law(SIZES, TOKENS, noisy(0.01, 4))
    for name, true in CHINCHILLA.values().items():
        metric = found.metric(lambda law, name=name: law.values()[name])  # type: ignore[misc]
        assert metric.low is not None
        assert metric.high is not None
        assert metric.low <= true <= metric.high, name
    predicted = found.predict(7e9, 1e11)
    true_loss = CHINCHILLA.loss(7e9, 1e11)
    assert predicted.low is not None
    assert predicted.high is not None
    assert predicted.low <= true_loss <= predicted.high
    assert predicted.high - predicted.low < 0.2


def test_the_published_optimum() -> None:
    """Table 2 of the paper: a = 0.46 and b = 0.54 by the parametric fit."""
    a, b = CHINCHILLA.optimal_exponents
    assert (a, b) == pytest.approx((0.46, 0.54), abs=0.01)
    compute = 5.76e23  # Gopher's
    size, tokens = CHINCHILLA.optimal(compute)
    assert FLOPS * size * tokens == pytest.approx(compute)
    searched = minimize_scalar(
        lambda log: float(CHINCHILLA.loss(np.exp(log), compute / FLOPS / np.exp(log))),
        bounds=(18, 28),
        method="bounded",
        options={"xatol": 1e-6},
    )
    assert size == pytest.approx(np.exp(searched.x), rel=1e-3)


def test_sizes_that_do_not_matter() -> None:
    losses = [np.array([3 + 100 * d**-0.3]) for d in TOKENS]
    found = fit_law(SIZES, TOKENS, losses)
    assert found.law.loss(1e7, 1e9) == pytest.approx(found.law.loss(1e9, 1e9), rel=1e-3)


def test_too_few_runs() -> None:
    with pytest.raises(InputError, match="3 sizes, not 2"):
        fit_law(SIZES[:8], TOKENS[:8], noisy(0.0, 1)[:8])
