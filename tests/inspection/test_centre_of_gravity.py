"""Learned weights of layers: by symmetry, by construction, and against a search with sklearn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from firth.inspection.centre_of_gravity import centre_of_gravity, layer_weights

RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, 2, 300)
SIGNAL = np.where(TARGETS, 1.0, -1.0)[:, None].astype(np.float32)


def noise(width: int) -> np.ndarray:
    return RNG.normal(size=(len(TARGETS), width)).astype(np.float32)


def test_equal_layers_are_read_equally() -> None:
    layer = SIGNAL + noise(4)
    weights = layer_weights(np.stack([layer] * 3), TARGETS, strength=0.1)
    assert weights == pytest.approx([1 / 3] * 3, abs=1e-3)
    assert centre_of_gravity(weights) == pytest.approx(1, abs=1e-3)  # (0 + 1 + 2) / 3


def test_the_layer_with_the_signal_is_read() -> None:
    layers = np.stack([noise(4), noise(4), SIGNAL + 0.5 * noise(4)])
    weights = layer_weights(layers, TARGETS, strength=0.1)
    assert centre_of_gravity(weights) > 1.8


def test_the_weights_are_the_best_of_all() -> None:
    """Two layers with independent noise: a search over mixtures, each fitted by scikit-learn."""
    layers = np.stack([SIGNAL + noise(2), SIGNAL + 1.5 * noise(2)])
    scaled = (layers - layers.mean(1, keepdims=True)) / layers.std(1, keepdims=True)

    def objective(second: float) -> float:
        mixed = (1 - second) * scaled[0] + second * scaled[1]
        mixed = mixed / np.sqrt(np.mean(mixed**2))
        probe = LogisticRegression(C=1.0, tol=1e-8).fit(mixed, TARGETS)
        right = probe.predict_log_proba(mixed)[np.arange(len(TARGETS)), TARGETS]
        return float(-right.sum() + 0.5 * np.sum(probe.coef_**2))

    best = min(np.linspace(0, 1, 41), key=objective)
    # Two rows of opposite weights w / 2 have half the penalty of one row w: half the strength.
    weights = layer_weights(layers, TARGETS, strength=0.5)
    assert 0.1 < best < 0.9
    assert weights[1] == pytest.approx(best, abs=0.05)
