"""Linear probing: what a network knows already, read off by one matrix at its optimum.

The vectors are computed once. The matrix that reads the labels off them best is the solution of a
convex problem, found by scikit-learn; how strongly it is held back is chosen by cross-validation
among the examples that it is found with, so that few labels suffice and the dev examples stay new.
There, the words of one sentence stay together, and so do a text and its variants.

M  labelled sequences or words     W  width     K  labels
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

from firth.draws import Floats, Longs
from firth.models.journey import as_tensor
from firth.models.labels import LabelHead
from firth.models.transformer import Transformer
from firth.tasks.running import in_batches
from firth.tasks.task import Facts, Item, Task
from firth.training.losses import run

STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)  # inverse weights of the penalty
FOLDS, FOLDED = 5, 2000  # parts of a cross-validation, and how many vectors it takes at most
ITERATIONS = 2000


@dataclass(frozen=True)
class Reading:
    """A matrix with its bias, and how it was found."""

    weight: Floats  # (K, W)
    bias: Floats  # (K,)
    strength: float


def is_solvable(task: Task) -> bool:
    """Whether the best head of a task is the solution of an equation."""
    return bool(task.tells_apart)


@torch.no_grad()
def features(
    task: Task, network: Transformer, items: Sequence[Item], facts: Facts
) -> tuple[NDArray[np.float32], NDArray[Any], Longs]:
    """The vectors a head sees (M, W), what it should say of them (M,) or (M, K), their items (M,).

    An item is told by its place among all.
    """
    vectors, targets, places = [], [], []
    for chosen in in_batches(items):
        batch = task.batch([items[i] for i in chosen], facts, network.config)
        hidden = run(network, batch)
        (wanted,) = batch.predictions.values()
        if task.tells_apart == "words":
            seen = hidden[as_tensor(wanted.positions, hidden.device)]
        else:
            starts = as_tensor(batch.inputs.starts, hidden.device)
            seen = network.pooled(hidden, starts)
        vectors.append(seen.float().cpu().numpy())
        targets.append(wanted.targets)
        owners = np.repeat(chosen, [len(items[i].rows) for i in chosen])  # of the sequences
        rows = np.searchsorted(batch.inputs.starts, wanted.positions, side="right") - 1
        places.append(owners[rows])
    return np.concatenate(vectors), np.concatenate(targets), np.concatenate(places)


def solve(
    seen: NDArray[np.float32],
    right: NDArray[Any],
    facts: Facts,
    strength: float,
    weights: Mapping[int, float] | None = None,
) -> Reading:
    """The matrix that reads the labels off the vectors best; `weights`: what each label counts."""
    from sklearn.linear_model import LogisticRegression, Ridge

    middle, spread = seen.mean(0), np.maximum(seen.std(0), 1e-6)
    scaled = (seen - middle) / spread
    if facts.labelling == "number":
        fit = Ridge(alpha=1.0 / strength).fit(scaled, right)
        weight, bias = fit.coef_[None], np.array([fit.intercept_])
    else:
        columns = right.T if facts.labelling == "many" else [right]
        kind = partial(LogisticRegression, C=strength, max_iter=ITERATIONS, class_weight=weights)
        parts = [_logistic(kind, scaled, column) for column in columns]
        weight = np.concatenate([part[0] for part in parts])
        bias = np.concatenate([part[1] for part in parts])
        if facts.labelling == "one":
            weight, bias = _every_label(weight, bias, np.unique(right), len(facts.labels))
    weight = weight / spread
    return Reading(weight.astype(np.float64), bias - weight @ middle, strength)


def _logistic(kind: Any, seen: NDArray[np.float32], right: NDArray[Any]) -> tuple[Floats, Floats]:
    if len(np.unique(right)) < 2:  # a label that all or none have
        always = 20.0 if right[0] else -20.0
        return np.zeros((1, seen.shape[1])), np.array([always])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own words on convergence
        fit = kind().fit(seen, right)
    return fit.coef_, fit.intercept_


def _every_label(
    weight: Floats, bias: Floats, there: NDArray[Any], labels: int
) -> tuple[Floats, Floats]:
    """Rows for all labels, also where two share one row and some never occur."""
    if len(weight) == 1 and len(there) == 2:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    full, base = np.zeros((labels, weight.shape[1])), np.full(labels, -20.0)
    full[there.astype(int)], base[there.astype(int)] = weight, bias
    return full, base


@torch.no_grad()
def solve_head(
    task: Task,
    network: Transformer,
    items: Sequence[Item],
    facts: Facts,
    texts: int,
    weights: Mapping[int, float] | None = None,
) -> str:
    """Set a network's head to the optimum; what was found, in words.

    The first `texts` items are examples of their own, all others variants of them (`augment`).
    """
    network.eval()
    seen, right, places = features(task, network, items, facts)
    strength = choose_strength(seen, right, facts, places % texts, weights)
    best = solve(seen, right, facts, strength, weights)
    head = network.heads[task.head]
    assert isinstance(head, LabelHead)
    head.output.weight.copy_(torch.from_numpy(best.weight))
    head.output.bias.copy_(torch.from_numpy(best.bias))
    return (
        f"The head was solved to its optimum on {len(seen):,} vectors that were computed once "
        f"(penalty {1 / best.strength:g}, the best of {len(STRENGTHS)} by cross-validation)."
    )


def choose_strength(
    seen: NDArray[np.float32],
    right: NDArray[Any],
    facts: Facts,
    owners: Longs,
    weights: Mapping[int, float] | None = None,
) -> float:
    """The strength with which each part of the examples is read best off what the others taught.

    Vectors of one owner are in one part.
    """
    order = np.random.default_rng(0).permutation(len(seen))[:FOLDED]
    turns: dict[int, int] = {}  # of the owners, as they are drawn
    turn = np.array([turns.setdefault(owner, len(turns)) for owner in owners[order].tolist()])
    if len(turns) < 2 * FOLDS:
        return 1.0
    seen, right, fold = seen[order], right[order], turn % FOLDS

    def loss(strength: float) -> float:
        lost = 0.0
        for part in range(FOLDS):
            own, other = fold == part, fold != part
            reading = solve(seen[other], right[other], facts, strength, weights)
            lost += _loss(seen[own] @ reading.weight.T + reading.bias, right[own], facts, weights)
        return lost

    return min(STRENGTHS, key=loss)


def _loss(
    scores: Floats, right: NDArray[Any], facts: Facts, weights: Mapping[int, float] | None
) -> float:
    """What scores (M, K) lose, summed: a likelihood tells more of few examples than being right."""
    if facts.labelling == "number":
        return float(((scores[:, 0] - right) ** 2).sum())
    if facts.labelling == "many":
        return float((np.logaddexp(0, scores) - scores * right).sum())
    own = scores[np.arange(len(right)), right.astype(int)]
    counts = 1.0 if weights is None else np.array([weights[int(id)] for id in right])
    return float((counts * (np.logaddexp.reduce(scores, axis=1) - own)).sum())
