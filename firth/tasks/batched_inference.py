"""Inference in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from firth.inference.batching import batch_by_length
from firth.models.language_model import LanguageNetwork
from firth.tasks.task import EncodedExample, Task, TaskMetadata
from firth.training.distributed.ranks import join_shares, own_share
from firth.utils.errors import MismatchError


@torch.no_grad()
def batched_outputs(
    task: Task,
    network: LanguageNetwork,
    items: Sequence[EncodedExample],
    metadata: TaskMetadata,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Any]:
    """Run a network on all items and return outputs in their order; each rank runs some batches."""
    found: dict[int, Any] = {}
    for batch in own_share(batch_by_length([(item.size,) for item in items])):
        predicted = task.outputs(network, [items[i] for i in batch], metadata)
        found |= zip(batch, predicted, strict=True)
        progress(len(found))
    found = join_shares(found)
    return [found[i] for i in range(len(items))]


def average_outputs(all_outputs: Sequence[Sequence[Any]]) -> list[Any]:
    """Average the outputs of several networks for each item."""
    if len(all_outputs) == 1:
        return list(all_outputs[0])
    means = []
    for one in zip(*all_outputs, strict=True):
        arrays = [np.asarray(output, dtype=np.float64) for output in one]
        if isinstance(one[0], list) or any(a.shape != arrays[0].shape for a in arrays):
            raise MismatchError(
                "These models cannot be averaged: their outputs have different shapes (models that "
                "generate text, or have different tokenizers)."
            )
        means.append(np.mean(arrays, axis=0))
    return means
