"""What a head for labels loses on a batch: a sum, and how many were right.

S  sequences     M  of them with a label     N  tokens     K  labels
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from firth.models.journey import as_tensor
from firth.models.labels import within
from firth.models.masks import take
from firth.models.transformer import Transformer
from firth.objectives.batch import Batch, Prediction

Loss = Callable[[Transformer, Tensor, Prediction, Batch], tuple[Tensor, Tensor]]


def _scores(network: Transformer, hidden: Tensor, batch: Batch) -> Tensor:
    return network.label_scores(hidden, as_tensor(batch.output.starts, hidden.device)).float()


def _weighted(losses: Tensor, wanted: Prediction) -> Tensor:
    if wanted.weights is not None:
        losses = losses * as_tensor(wanted.weights, losses.device).float()
    return losses.sum()


def _label(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    """One label for each sequence."""
    scores, targets = _scores(network, hidden, batch), as_tensor(wanted.targets, hidden.device)
    losses = cross_entropy(scores, targets, reduction="none")
    return _weighted(losses, wanted), (scores.argmax(-1) == targets).sum()


def _labels(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Any number of labels for each sequence; right where every one of them is."""
    scores = _scores(network, hidden, batch)
    targets = as_tensor(wanted.targets, hidden.device).float()  # (S, K)
    losses = binary_cross_entropy_with_logits(scores, targets, reduction="none").mean(-1)
    return _weighted(losses, wanted), ((scores > 0) == targets.bool()).all(-1).sum()


def _number(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    """A number for each sequence; right within a half."""
    scores = _scores(network, hidden, batch).squeeze(-1)
    targets = as_tensor(wanted.targets, hidden.device).float()
    losses = mse_loss(scores, targets, reduction="none")
    return _weighted(losses, wanted), ((scores - targets).abs() < 0.5).sum()


def _choice(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Which of the sequences that belong together is the right one."""
    assert batch.units is not None
    scores = _scores(network, hidden, batch).squeeze(-1)  # (S,)
    begins = np.concatenate([[0], np.cumsum(batch.units)])
    shares = within(scores, as_tensor(begins, hidden.device))
    right = begins[:-1] + wanted.targets.astype(np.int64)
    groups = scores.detach().split(batch.units.tolist())
    best = torch.stack([group.argmax() for group in groups])
    chosen = (best == as_tensor(wanted.targets, hidden.device)).sum()
    return _weighted(-shares[as_tensor(right, hidden.device)], wanted), chosen


def _tag(
    network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
) -> tuple[Tensor, Tensor]:
    """One label for each of some tokens."""
    chosen = take(hidden, as_tensor(wanted.positions, hidden.device))
    scores = network.heads["tag"](chosen).float()
    targets = as_tensor(wanted.targets, hidden.device)
    losses = cross_entropy(scores, targets, reduction="none")
    return _weighted(losses, wanted), (scores.argmax(-1) == targets).sum()


def _edge(which: int) -> Loss:
    """Where an answer begins (0) or ends (1), among the tokens of its sequence."""

    def loss(
        network: Transformer, hidden: Tensor, wanted: Prediction, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        starts = as_tensor(batch.output.starts, hidden.device)
        shares = within(_scores(network, hidden, batch)[:, which], starts)
        positions = as_tensor(wanted.positions, hidden.device)
        peaks = torch.stack(
            [part.max() for part in shares.detach().split(batch.output.lengths.tolist())]
        )
        right = (shares.detach()[positions] == peaks).sum()
        return _weighted(-shares[positions], wanted), right

    return loss


# What is predicted -> how it is scored, and the head that needs.
LABEL_LOSSES: dict[str, tuple[Loss, tuple[str, ...]]] = {
    "label": (_label, ("classify",)),
    "labels": (_labels, ("classify",)),
    "number": (_number, ("classify",)),
    "choice": (_choice, ("choose",)),
    "tags": (_tag, ("tag",)),
    "begin": (_edge(0), ("span",)),
    "end": (_edge(1), ("span",)),
}
