"""Inference in batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from firth.inference.batching import batch_by_length
from firth.models.transformer import Transformer
from firth.tasks.task import EncodedExample, Task, TaskMetadata
from firth.utils.errors import MismatchError

BATCH_TOKENS = 8192


def length_batches(
    items: Sequence[EncodedExample], tokens: int = BATCH_TOKENS
) -> Iterator[list[int]]:
    """Yield the indices of items for each batch: items of similar length, the longest first.

    >>> from firth.tasks.inputs import FramedSequence
    >>> sizes = [3, 9, 2, 8]
    >>> rows = [FramedSequence(np.zeros(n, int), np.zeros(n, int), 0, 0) for n in sizes]
    >>> items = [EncodedExample((row,)) for row in rows]
    >>> list(length_batches(items, tokens=17))
    [[1, 3], [0, 2]]
    """
    return batch_by_length([(item.size,) for item in items], tokens)


@torch.no_grad()
def batched_outputs(
    task: Task,
    network: Transformer,
    items: Sequence[EncodedExample],
    metadata: TaskMetadata,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Any]:
    """Run a network on all items and return outputs in their order."""
    found: list[Any] = [None] * len(items)
    done = 0
    for batch in length_batches(items):
        predicted = task.outputs(network, [items[i] for i in batch], metadata)
        for i, output in zip(batch, predicted, strict=True):
            found[i] = output
        done += len(batch)
        progress(done)
    return found


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
