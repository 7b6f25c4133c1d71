"""A network answers many examples: in batches of similar length, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from firth.errors import MismatchError
from firth.inference.batches import by_length
from firth.models.transformer import Transformer
from firth.tasks.task import Facts, Item, Task

TOKENS = 8192  # of a batch


def in_batches(items: Sequence[Item], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Which items are read together: those of similar size, the largest first.

    >>> from firth.tasks.frame import Framed
    >>> sizes = [3, 9, 2, 8]
    >>> items = [Item((Framed(np.zeros(n, int), np.zeros(n, int), 0, 0),)) for n in sizes]
    >>> list(in_batches(items, tokens=17))
    [[1, 3], [0, 2]]
    """
    return by_length([(item.size,) for item in items], tokens)


@torch.no_grad()
def outputs(
    task: Task,
    network: Transformer,
    items: Sequence[Item],
    facts: Facts,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Any]:
    """What a network says of each item, in their order."""
    found: list[Any] = [None] * len(items)
    done = 0
    for batch in in_batches(items):
        said = task.outputs(network, [items[i] for i in batch], facts)
        for i, output in zip(batch, said, strict=True):
            found[i] = output
        done += len(batch)
        progress(done)
    return found


def averaged(all_outputs: Sequence[Sequence[Any]]) -> list[Any]:
    """The mean of what several networks say of each item."""
    if len(all_outputs) == 1:
        return list(all_outputs[0])
    means = []
    for said in zip(*all_outputs, strict=True):
        arrays = [np.asarray(output, dtype=np.float64) for output in said]
        if isinstance(said[0], list) or any(a.shape != arrays[0].shape for a in arrays):
            raise MismatchError(
                "These models cannot be averaged: what they say of one example is not of one form "
                "(models that write, or that cut texts into other tokens, have nothing to average)."
            )
        means.append(np.mean(arrays, axis=0))
    return means
