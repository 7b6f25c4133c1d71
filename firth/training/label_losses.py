"""Losses of the label heads: the summed loss of a batch, and the number of correct predictions.

S  sequences     M  sequences with a label     N  tokens     K  labels
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from firth.models.label_heads import LabelHead, log_softmax_per_sequence
from firth.models.language_model import LanguageNetwork
from firth.models.masks import select_rows
from firth.objectives.batch import Batch, PredictionTargets
from firth.utils.device_transfer import to_device

Loss = Callable[[LanguageNetwork, Tensor, PredictionTargets, Batch], tuple[Tensor, Tensor | None]]


def _logits(network: LanguageNetwork, hidden: Tensor, batch: Batch) -> Tensor:
    return network.label_logits(hidden, to_device(batch.output.starts, hidden.device)).float()


def _weighted(losses: Tensor, wanted: PredictionTargets) -> Tensor:
    if wanted.weights is not None:
        losses = losses * to_device(wanted.weights, losses.device).float()
    return losses.sum()


def _label(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Compute the loss of one label per sequence."""
    logits, targets = _logits(network, hidden, batch), to_device(wanted.targets, hidden.device)
    losses = cross_entropy(logits, targets, reduction="none")
    return _weighted(losses, wanted), (logits.argmax(-1) == targets).sum()


def _labels(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Compute the multi-label loss of sequences; correct if all labels are."""
    logits = _logits(network, hidden, batch)
    targets = to_device(wanted.targets, hidden.device).float()  # (S, K)
    losses = binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1)
    return _weighted(losses, wanted), ((logits > 0) == targets.bool()).all(-1).sum()


def _number(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Compute the regression loss of sequences; correct within 0.5."""
    logits = _logits(network, hidden, batch).squeeze(-1)
    targets = to_device(wanted.targets, hidden.device).float()
    losses = mse_loss(logits, targets, reduction="none")
    return _weighted(losses, wanted), ((logits - targets).abs() < 0.5).sum()


def _choice(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Compute the multiple-choice loss: column sequence of each group is correct."""
    assert batch.group_sizes is not None
    logits = _logits(network, hidden, batch).squeeze(-1)  # (S,)
    begins = np.concatenate([[0], np.cumsum(batch.group_sizes)])
    log_probs = log_softmax_per_sequence(logits, to_device(begins, hidden.device))
    correct = begins[:-1] + wanted.targets.astype(np.int64)
    groups = logits.detach().split(batch.group_sizes.tolist())
    best = torch.stack([group.argmax() for group in groups])
    chosen = (best == to_device(wanted.targets, hidden.device)).sum()
    return _weighted(-log_probs[to_device(correct, hidden.device)], wanted), chosen


def _tag(
    network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Compute the loss of one label per token, or of all tokens of a sequence together (CRF)."""
    head = network.heads["tag"]
    assert isinstance(head, LabelHead)
    chosen = select_rows(hidden, to_device(wanted.positions, hidden.device))
    logits = head(chosen).float()
    targets = to_device(wanted.targets, hidden.device)
    lengths = batch.output.count_in_sequences(wanted.positions).tolist()
    with torch.no_grad():
        answers = head.tag_probabilities(logits, lengths).argmax(-1)
    return head.tag_losses(logits, targets, lengths).sum(), (answers == targets).sum()


def _boundary(column: int) -> Loss:
    """Return the loss of an answer's start (0) or end (1) among the tokens of its sequence."""

    def loss(
        network: LanguageNetwork, hidden: Tensor, wanted: PredictionTargets, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        starts = to_device(batch.output.starts, hidden.device)
        log_probs = log_softmax_per_sequence(_logits(network, hidden, batch)[:, column], starts)
        positions = to_device(wanted.positions, hidden.device)
        best_log_probs = torch.stack(
            [part.max() for part in log_probs.detach().split(batch.output.lengths.tolist())]
        )
        correct = (log_probs.detach()[positions] == best_log_probs).sum()
        return _weighted(-log_probs[positions], wanted), correct

    return loss


# Prediction -> its loss function and the head it needs.
LABEL_LOSSES: dict[str, tuple[Loss, str]] = {
    "label": (_label, "classify"),
    "labels": (_labels, "classify"),
    "number": (_number, "classify"),
    "choice": (_choice, "choose"),
    "tags": (_tag, "tag"),
    "begin": (_boundary(0), "span"),
    "end": (_boundary(1), "span"),
}
