"""Probes that are trained on some examples and tested on others, and their control tasks.

A control task (Hewitt and Liang 2019, section 2) gives each word type a random label, with the
frequencies of the real labels. A probe can only learn it by memorizing words. Selectivity is the
accuracy on the task minus that on its control: a probe with high accuracy and low selectivity says
more about itself than about the vectors. A whole text occurs once, so its control label cannot be
learned, and the selectivity of text tasks is the accuracy above guessing.

L  layers     n  examples     m  test examples     W  hidden size
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from firth.inspection.layer_vectors import Vectors
from firth.tasks.linear_probe import solve
from firth.tasks.task import TaskMetadata
from firth.utils.rng import Bools, Longs
from firth.utils.threads import single_threaded


def control_labels(types: Sequence[str], targets: Longs, seed: int = 0) -> Longs:
    """Give each word type a random label, drawn from the labels of the examples.

    >>> control_labels(["a", "cat", "a"], np.array([0, 1, 0])).tolist() in ([0, 0, 0], [0, 1, 0],
    ...     [1, 0, 1], [1, 1, 1])
    True
    """
    places = {kind: place for place, kind in enumerate(dict.fromkeys(types))}
    drawn = np.random.default_rng(seed).choice(targets, len(places))
    return np.asarray(drawn[[places[kind] for kind in types]])


@single_threaded()
def probe_answers(
    layers: Vectors, targets: Longs, train: Longs, test: Longs, strength: float
) -> Bools:
    """Fit a linear classifier at each layer, and tell which test examples it gets right.

    `train` and `test` are places of examples; `strength` is the inverse L2 penalty.

    >>> signal = np.array([[[0.0], [1.0]] * 10], dtype=np.float32)
    >>> probe_answers(signal, np.array([0, 1] * 10), np.arange(10), np.arange(10, 20), 1.0).all()
    np.True_
    """  # (L + 1, n, W) -> (L + 1, m)
    metadata = TaskMetadata(task="classify", labels=tuple(map(str, range(targets.max() + 1))))
    right = []
    for vectors in layers:
        probe = solve(vectors[train], targets[train], metadata, strength)
        logits = vectors[test] @ probe.weight.T + probe.bias
        right.append(logits.argmax(axis=1) == targets[test])
    return np.stack(right)
