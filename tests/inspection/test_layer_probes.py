"""Linear probes of layers, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from firth.inspection.layer_probes import FOLDS, probe_layers
from firth.tasks import linear_probe
from firth.tasks.linear_probe import choose_strength
from firth.tasks.readers.subsampling import stratified_folds
from firth.tasks.task import TaskMetadata

LABELS = ["green", "red", "blue"] * 20


def layers(*signals: float) -> np.ndarray:
    """One layer for each strength of the signal: three columns with the label, three of noise."""
    noise = np.random.default_rng(0).normal(size=(len(LABELS), 6))
    signal = [[label == name for name in ("green", "red", "blue", "", "", "")] for label in LABELS]
    return np.stack([noise + strength * np.array(signal) for strength in signals]).astype("float32")


def test_predictions_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "STRENGTHS", (0.1, 1.0))  # fewer fits
    [vectors] = layers(1.5)
    labels, names = np.array(LABELS), sorted(set(LABELS))
    metadata = TaskMetadata(task="classify", labels=tuple(names))
    expected = np.zeros(len(labels))
    for fold in stratified_folds(LABELS, FOLDS, 3):
        train = np.setdiff1d(np.arange(len(labels)), fold)
        targets = np.array([names.index(label) for label in labels[train]])
        strength = choose_strength(vectors[train], targets, metadata, train)
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
        expected[fold] = (
            probe.fit(vectors[train], labels[train]).predict(vectors[fold]) == labels[fold]
        )
    found = probe_layers(vectors[None], LABELS, seed=3)
    assert np.abs(found.by_layer[0] - expected).sum() <= 1  # one text may be between two labels
    assert found.accuracies[0].value == found.by_layer[0].mean() < 1


def test_the_layer_is_chosen_within_the_training_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_probe, "STRENGTHS", (0.1, 1.0))  # fewer fits
    found = probe_layers(layers(0, 6, 0.5), LABELS)
    low, best, middle = (metric.value for metric in found.accuracies)
    assert best == 1 > max(low, middle)
    assert found.chosen_layers == (1,) * FOLDS
    assert found.chosen.tolist() == found.by_layer[1].tolist()
    assert found.selected


def test_few_texts_are_probed_at_the_last_layer() -> None:
    """The training folds are too small for a cross-validation within them."""
    found = probe_layers(layers(6, 0)[:, :10], LABELS[:10])
    assert found.chosen_layers == (1,) * FOLDS
    assert not found.selected
