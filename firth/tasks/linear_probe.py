"""Linear probing: a linear classifier on frozen features, fitted to its optimum.

Features are computed once. The classifier is fitted by scikit-learn; its regularization strength is
chosen by cross-validation on the training examples, so that few labels suffice and the dev examples
stay unseen. Words of one sentence, and a text and its variants, are in the same fold.

M  labelled sequences or words     W  hidden size     K  labels
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from firth.inference.batching import batch_by_length
from firth.models.label_heads import LabelHead
from firth.models.language_model import LanguageNetwork
from firth.tasks.task import EncodedExample, Task, TaskMetadata
from firth.training.losses import hidden_states
from firth.utils.device_transfer import to_device
from firth.utils.rng import Floats, Longs

STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)  # C of scikit-learn: inverse L2 penalties
FOLDS, MAX_FEATURES = 5, 2000  # of cross-validation
MAX_ITERATIONS = 2000


@dataclass(frozen=True)
class ProbeSolution:
    """Weight and bias of the fitted head, and the regularization strength."""

    weight: Floats  # (K, W)
    bias: Floats  # (K,)
    strength: float


@torch.no_grad()
def features(
    task: Task, network: LanguageNetwork, items: Sequence[EncodedExample], metadata: TaskMetadata
) -> tuple[NDArray[np.float32], NDArray[Any], Longs]:
    """Compute the head's inputs (M, W), their targets (M,) or (M, K) and item indices (M,)."""
    vectors, targets, places = [], [], []
    for chosen in batch_by_length([(item.size,) for item in items]):
        batch = task.batch([items[i] for i in chosen], metadata, network.config)
        hidden = hidden_states(network, batch, for_labels=True)
        (wanted,) = batch.predictions.values()
        if task.label_unit == "words":
            seen = hidden[to_device(wanted.positions, hidden.device)]
        else:
            starts = to_device(batch.inputs.starts, hidden.device)
            seen = network.pool(hidden, starts)
        vectors.append(seen.float().cpu().numpy())
        targets.append(wanted.targets)
        owners = np.repeat(chosen, [len(items[i].rows) for i in chosen])  # of the sequences
        rows = np.searchsorted(batch.inputs.starts, wanted.positions, side="right") - 1
        places.append(owners[rows])
    return np.concatenate(vectors), np.concatenate(targets), np.concatenate(places)


def solve(
    seen: NDArray[np.float32],
    right: NDArray[Any],
    metadata: TaskMetadata,
    strength: float,
    weights: Mapping[int, float] | None = None,
) -> ProbeSolution:
    """Fit the linear head; `weights` maps labels to the weights of their examples."""
    middle, spread = seen.mean(0), np.maximum(seen.std(0), 1e-6)
    scaled = (seen - middle) / spread
    weight, bias = fit_linear(scaled, right, metadata, strength, weights)
    weight = weight / spread
    return ProbeSolution(weight.astype(np.float64), bias - weight @ middle, strength)


def fit_linear(
    seen: Any,
    right: NDArray[Any],
    metadata: TaskMetadata,
    strength: float,
    weights: Mapping[int, float] | None = None,
) -> tuple[Floats, Floats]:
    """Fit a linear classifier or regression to features, dense or sparse: weight and bias."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if metadata.label_type == "number":
        fit = Ridge(alpha=1.0 / strength).fit(seen, right)
        return fit.coef_[None], np.array([fit.intercept_])
    columns = right.T if metadata.label_type == "many" else [right]
    kind = partial(LogisticRegression, C=strength, max_iter=MAX_ITERATIONS, class_weight=weights)
    parts = [_logistic(kind, seen, column) for column in columns]
    weight = np.concatenate([part[0] for part in parts])
    bias = np.concatenate([part[1] for part in parts])
    if metadata.label_type == "one":
        weight, bias = _every_label(weight, bias, np.unique(right), len(metadata.labels))
    return weight, bias


def _logistic(kind: Any, seen: Any, right: NDArray[Any]) -> tuple[Floats, Floats]:
    if len(np.unique(right)) < 2:  # all or no examples have the label
        always = 20.0 if right[0] else -20.0
        return np.zeros((1, seen.shape[1])), np.array([always])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence warnings
        fit = kind().fit(seen, right)
    return fit.coef_, fit.intercept_


def _every_label(
    weight: Floats, bias: Floats, there: NDArray[Any], labels: int
) -> tuple[Floats, Floats]:
    """Expand to one row per label, also for binary fits and labels that do not occur."""
    if len(weight) == 1 and len(there) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    full, base = np.zeros((labels, weight.shape[1])), np.full(labels, -20.0)
    full[there.astype(int)], base[there.astype(int)] = weight, bias
    return full, base


@torch.no_grad()
def solve_head(
    task: Task,
    network: LanguageNetwork,
    items: Sequence[EncodedExample],
    metadata: TaskMetadata,
    texts: int,
    weights: Mapping[int, float] | None = None,
) -> str:
    """Fit a network's head and return a note about it.

    The first `texts` items are original examples, all others variants of them (`augment`).
    """
    network.eval()
    seen, right, places = features(task, network, items, metadata)
    strength = choose_strength(seen, right, metadata, places % texts, weights)
    best = solve(seen, right, metadata, strength, weights)
    head = network.heads[task.head]
    assert isinstance(head, LabelHead)
    head.output.weight.copy_(torch.from_numpy(best.weight))
    head.output.bias.copy_(torch.from_numpy(best.bias))
    return (
        f"The head was fitted by scikit-learn on {len(seen):,} feature vectors "
        f"(penalty {1 / best.strength:g}, the best of {len(STRENGTHS)} by cross-validation)."
    )


def choose_strength(
    seen: NDArray[np.float32],
    right: NDArray[Any],
    metadata: TaskMetadata,
    owners: Longs,
    weights: Mapping[int, float] | None = None,
) -> float:
    """Choose the regularization strength with the lowest loss; 1 for few owners."""
    losses = strength_losses(seen, right, metadata, owners, weights)
    return min(losses, key=losses.__getitem__, default=1.0)


def strength_losses(
    seen: NDArray[np.float32],
    right: NDArray[Any],
    metadata: TaskMetadata,
    owners: Longs,
    weights: Mapping[int, float] | None = None,
) -> dict[float, float]:
    """Compute the cross-validation loss of each regularization strength; none for few owners.

    Features of one owner are in one fold.
    """
    order = np.random.default_rng(0).permutation(len(seen))[:MAX_FEATURES]
    turns: dict[int, int] = {}  # owner -> its number in random order
    turn = np.array([turns.setdefault(owner, len(turns)) for owner in owners[order].tolist()])
    if len(turns) < 2 * FOLDS:
        return {}
    seen, right, fold = seen[order], right[order], turn % FOLDS

    def loss(strength: float) -> float:
        lost = 0.0
        for part in range(FOLDS):
            own, other = fold == part, fold != part
            reading = solve(seen[other], right[other], metadata, strength, weights)
            lost += _loss(
                seen[own] @ reading.weight.T + reading.bias, right[own], metadata, weights
            )
        return lost

    return {strength: loss(strength) for strength in STRENGTHS}


def _loss(
    scores: Floats, right: NDArray[Any], metadata: TaskMetadata, weights: Mapping[int, float] | None
) -> float:
    """Sum the loss of scores (M, K); with few examples, loss is less noisy than accuracy."""
    if metadata.label_type == "number":
        return float(((scores[:, 0] - right) ** 2).sum())
    if metadata.label_type == "many":
        return float((np.logaddexp(0, scores) - scores * right).sum())
    own = scores[np.arange(len(right)), right.astype(int)]
    counts = 1.0 if weights is None else np.array([weights[int(id)] for id in right])
    return float((counts * (np.logaddexp.reduce(scores, axis=1) - own)).sum())
