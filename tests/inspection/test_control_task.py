"""Probes with train and test examples against scikit-learn, and control tasks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from firth.inspection.control_task import control_labels, probe_answers


def test_answers_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 120)
    noise = rng.normal(size=(2, 120, 5)).astype(np.float32)
    layers = noise + np.eye(5, dtype=np.float32)[targets] * np.array([[[0.5]], [[2.0]]], np.float32)
    train, test = np.arange(80), np.arange(80, 120)
    found = probe_answers(layers, targets, train, test, strength=0.5)
    for layer, right in zip(layers, found, strict=True):
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=2000))
        expected = probe.fit(layer[train], targets[train]).predict(layer[test]) == targets[test]
        assert abs(right.astype(int) - expected).sum() <= 1  # one may be between two labels


def test_control_labels_belong_to_words_and_have_the_frequencies_of_the_task() -> None:
    types = [f"word {i % 3000}" for i in range(6000)]
    targets = np.array([0, 0, 0, 1] * 1500)
    control = control_labels(types, targets, seed=1)
    assert (control[:3000] == control[3000:]).all()
    counts = Counter(control.tolist())
    assert abs(counts[1] / 6000 - 0.25) < 0.05
    assert (control != control_labels(types, targets, seed=2)).any()


def test_memorized_words_have_accuracy_without_selectivity() -> None:
    """One-hot vectors of words tell every control label, and those of a layer of noise none."""
    rng = np.random.default_rng(0)
    words = np.arange(600) % 30
    one_hot = np.eye(30, dtype=np.float32)[words]
    layers = np.stack([one_hot, rng.normal(size=one_hot.shape).astype(np.float32)])
    task = np.where(words < 15, 0, 1)
    control = control_labels([str(word) for word in words], task)
    train, test = np.arange(300), np.arange(300, 600)
    for targets in (task, control):
        memorized, chance = probe_answers(layers, targets, train, test, 1.0).mean(1)
        assert memorized == 1
        assert chance < 0.75
