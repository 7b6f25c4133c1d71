"""Linear probes of every layer: how well a linear classifier reads labels from hidden states.

Each text is predicted by a classifier that was fitted on the other folds (Alain and Bengio 2017).
Regularization, and the layer that represents a model, are chosen by cross-validation within the
training folds, so that a model with more layers has no advantage.

n  texts     L  layers     W  hidden size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from firth.inspection.layer_vectors import Vectors
from firth.metrics.bootstrap import Metric, means
from firth.tasks.linear_probe import solve, strength_losses
from firth.tasks.readers.subsampling import stratified_folds
from firth.tasks.task import TaskMetadata
from firth.utils.rng import Floats, Longs
from firth.utils.threads import single_threaded

FOLDS = 5


@dataclass(frozen=True, eq=False)
class LayerProbes:
    """Which texts linear probes predict correctly: 1 or 0."""

    by_layer: Floats  # (L + 1, n)
    chosen_layers: tuple[int, ...]  # (folds,) with the lowest loss within the training folds
    chosen: Floats  # (n,) at these layers
    selected: bool = True  # False: some training folds are too small, and have the last layer

    @property
    def accuracies(self) -> tuple[Metric, ...]:
        """The accuracy at each layer."""
        found = means(dict(enumerate(self.by_layer)))
        return tuple(found.values())

    @property
    def accuracy(self) -> Metric:
        """The accuracy at the chosen layers."""
        return means({"accuracy": self.chosen})["accuracy"]


@single_threaded()
def probe_layers(
    layers: Vectors,
    labels: Sequence[str],
    *,
    seed: int = 0,
    done: Callable[[], None] = lambda: None,
) -> LayerProbes:
    """Cross-validate a linear probe at each layer; `done` is called after each.

    >>> labels = ["red", "blue"] * 5
    >>> signal = np.array([[float(label == "red"), i / 10] for i, label in enumerate(labels)])
    >>> found = probe_layers(np.stack([signal - 1, signal]), labels)
    >>> found.accuracy.value, found.chosen_layers
    (1.0, (1, 1, 1, 1, 1))
    """  # (L + 1, n, W)
    names = sorted(set(labels))
    targets = np.array([names.index(label) for label in labels])
    folds = [np.array(fold) for fold in stratified_folds(labels, FOLDS, seed)]
    metadata = TaskMetadata(task="classify", labels=tuple(names))
    correct, losses = [], []
    for vectors in layers:
        fitted = [_held_out(vectors, targets, fold, metadata) for fold in folds]
        correct.append(_in_order(folds, [right for right, _ in fitted]))
        losses.append([loss for _, loss in fitted])
        done()
    # The last of equal layers: without losses, because there are few texts, the last of all.
    best = len(losses) - 1 - np.argmin(losses[::-1], axis=0)  # (folds,)
    by_layer = np.stack(correct)
    chosen = [by_layer[layer, fold] for layer, fold in zip(best, folds, strict=True)]
    selected = not np.isinf(losses).any()
    return LayerProbes(by_layer, tuple(best.tolist()), _in_order(folds, chosen), selected)


def _held_out(
    vectors: Vectors, targets: Longs, fold: Longs, metadata: TaskMetadata
) -> tuple[Floats, float]:
    """Fit on the other folds; tell which texts of this one are right, and the training folds' loss.

    The loss is that of the best regularization strength; infinite for too few texts.
    """
    train = np.setdiff1d(np.arange(len(targets)), fold)
    losses = strength_losses(vectors[train], targets[train], metadata, train)
    strength = min(losses, key=losses.__getitem__, default=1.0)
    probe = solve(vectors[train], targets[train], metadata, strength)
    predicted = (vectors[fold] @ probe.weight.T + probe.bias).argmax(axis=1)
    right = (predicted == targets[fold]).astype(np.float64)
    return right, losses.get(strength, np.inf)


def _in_order(folds: Sequence[Longs], values: Sequence[Floats]) -> Floats:
    """Put the values of the folds in the order of the texts."""
    found = np.empty(sum(map(len, folds)))
    found[np.concatenate(folds)] = np.concatenate(values)
    return found
