"""Fit the linear classifier on a bag of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from firth.inference.batching import batch_by_length
from firth.models.label_heads import LabelHead
from firth.models.task_specific.bag_of_words import BagOfWords
from firth.tasks.linear_probe import fit_linear
from firth.tasks.task import EncodedExample, Task, TaskMetadata
from firth.training.losses import hidden_states
from firth.utils.device_transfer import to_device

STRENGTH = 10.0  # C of scikit-learn: the inverse of the L2 penalty


@torch.no_grad()
def solve_bag_of_words(
    task: Task,
    network: BagOfWords,
    items: Sequence[EncodedExample],
    metadata: TaskMetadata,
    weights: Mapping[int, float] | None = None,
) -> str:
    """Fit the head by scikit-learn on sparse features, and return a note about it."""
    from scipy.sparse import csr_matrix

    parts: list[tuple[Any, ...]] = []
    targets: list[Any] = []
    for chosen in batch_by_length([(item.size,) for item in items]):
        batch = task.batch([items[i] for i in chosen], metadata, network.config)
        starts = to_device(batch.inputs.starts, network.device)
        found = network.weights(hidden_states(network, batch, for_labels=True), starts)
        owners, ngrams, values = (tensor.cpu().numpy() for tensor in found)
        parts.append((owners + len(targets), ngrams, values))
        targets += [items[i].target for i in chosen]
    rows, columns, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    shape = (len(targets), network.config.hidden_size)
    seen = csr_matrix((values, (rows, columns)), shape=shape)
    weight, bias = fit_linear(seen, np.array(targets), metadata, STRENGTH, weights)
    head = network.heads[task.head]
    assert isinstance(head, LabelHead)
    head.output.weight.copy_(torch.from_numpy(weight))
    head.output.bias.copy_(torch.from_numpy(bias))
    return (
        f"The classifier was fitted by scikit-learn on {shape[0]:,} texts and {shape[1]:,} n-grams "
        f"(penalty {1 / STRENGTH:g})."
    )
