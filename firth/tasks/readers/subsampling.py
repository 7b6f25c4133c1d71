"""Stratified sampling, and overlap between datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from firth.tasks.readers.examples import Example
from firth.utils.errors import UsageError
from firth.utils.rng import Floats, Longs, derive_keys

QUANTILES = 10  # groups of numeric labels
SAMPLE = 0x5A3D  # random stream


def stratified_sample(
    labels: Sequence[Any], *, count: int, seed: int = 0, leave: int = 0
) -> tuple[list[int], list[int]]:
    """Draw a stratified sample; return the sorted indices of the sample and of the rest.

    Every label keeps its proportion to within one example and occurs at least once if the sample is
    large enough. Numeric labels (`float`) are grouped into deciles. With None for all labels, the
    sample is uniform. At least `leave` examples of each label stay in the rest: 1 for a held-out
    split, so that every label can be trained on. A count above the total takes everything.

    >>> stratified_sample(["a", "b", "a", "b", "a", "a"], count=3)
    ([1, 2, 4], [0, 3, 5])
    """
    if not isinstance(count, int) or count < 1:
        raise UsageError(f"The count must be a whole number of at least 1, not {count!r}.")
    groups = _groups(labels, count)  # (N,)
    there = np.bincount(groups)
    wanted = _apportion(there, np.maximum(there - leave, 0), count)
    draws = derive_keys(derive_keys(seed, SAMPLE), np.arange(len(groups)))
    order = np.lexsort((np.arange(len(groups)), draws, groups))  # by group, then at random
    ranks = np.arange(len(groups)) - (np.cumsum(there) - there)[groups[order]]
    chosen = np.zeros(len(groups), dtype=np.bool_)
    chosen[order[ranks < wanted[groups[order]]]] = True
    return np.flatnonzero(chosen).tolist(), np.flatnonzero(~chosen).tolist()


def stratified_folds(labels: Sequence[Any], folds: int, seed: int = 0) -> list[list[int]]:
    """Divide examples into folds for cross-validation, each with the proportions of the labels.

    >>> [sorted("aabb"[i] for i in fold) for fold in stratified_folds("aabb", 2)]
    [['a', 'b'], ['a', 'b']]
    """
    draws = derive_keys(derive_keys(seed, SAMPLE), np.arange(len(labels)))
    order = np.lexsort((draws, _groups(labels, len(labels))))  # by group, then at random
    return [sorted(order[first::folds].tolist()) for first in range(folds)]


def _groups(labels: Sequence[Any], size: int) -> Longs:
    """The group of each example: its label, or the decile of its numeric label."""
    if len(labels) and all(isinstance(label, float) for label in labels):
        order = np.argsort(np.array(labels, dtype=np.float64), kind="stable")
        groups = np.empty(len(labels), dtype=np.int64)
        groups[order] = np.arange(len(labels)) * min(QUANTILES, size, len(labels)) // len(labels)
        return groups
    keys = (tuple(sorted(label)) if isinstance(label, tuple) else label for label in labels)
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _apportion(there: Longs, most: Longs, size: int) -> Longs:
    """Distribute a sample over groups by the largest remainder method, within bounds.

    >>> _apportion(np.array([70, 27, 3]), np.array([70, 27, 3]), 10).tolist()
    [7, 2, 1]
    """
    size = min(size, int(most.sum()))
    quotas: Floats = there * (size / max(1, there.sum()))
    least = np.minimum(most, 1) if np.minimum(most, 1).sum() <= size else np.zeros_like(most)
    taken = np.clip(np.floor(quotas).astype(np.int64), least, most)
    while (over := int(taken.sum()) - size) != 0:
        if over > 0:
            surplus = np.where(taken > least, taken - quotas, -np.inf)
            taken[int(surplus.argmax())] -= 1
        else:
            lacking = np.where(taken < most, quotas - taken, -np.inf)
            taken[int(lacking.argmax())] += 1
    return taken


def overlap(train: Iterable[Example], dev: Iterable[Example]) -> int:
    """Count the dev examples whose inputs are in the training data, ignoring white space.

    >>> from firth.tasks.readers.examples import LabelledExample
    >>> known = [LabelledExample(text="So  good."), LabelledExample(text="So bad.")]
    >>> overlap(known, [LabelledExample(text="So good. "), LabelledExample(text="so bad.")])
    1
    """
    seen = {input_hash(example) for example in train}
    return sum(input_hash(example) in seen for example in dev)


def input_hash(example: Example) -> str:
    """Hash the inputs of an example, ignoring white space."""
    parts = (" ".join(part.split()) for part in example.inputs)
    text = "\n".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
