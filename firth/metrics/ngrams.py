"""N-gram counts and overlaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from firth.metrics.bootstrap import check_pairs
from firth.utils.errors import MismatchError

References = Sequence[str | Sequence[str]]  # one or several for each prediction


def ngrams(items: Sequence[Hashable], order: int) -> Counter[Hashable]:
    """Count the n-grams of length ``order``.

    >>> ngrams("to be or to be".split(), 2).most_common(1), ngrams("aha", 2)["ah"]
    ([(('to', 'be'), 2)], 1)
    """
    if isinstance(items, str):
        return Counter([items[i : i + order] for i in range(len(items) - order + 1)])
    return Counter(zip(*(items[i:] for i in range(order)), strict=False))


def overlap(one: Counter[Hashable], other: Counter[Hashable]) -> int:
    """Count the occurrences that two counters share.

    >>> overlap(ngrams("aab", 1), ngrams("abb", 1))
    2
    """
    shared = one.keys() & other.keys()
    return sum(map(min, map(one.__getitem__, shared), map(other.__getitem__, shared)))


def reference_lists(references: References, predicted: Sequence[str]) -> list[list[str]]:
    """Convert each prediction's references to a list.

    >>> reference_lists(["one", ["one", "or another"]], ["two", "three"])
    [['one'], ['one', 'or another']]
    """
    check_pairs(references, predicted)
    lists = [[entry] if isinstance(entry, str) else list(entry) for entry in references]
    for number, texts in enumerate(lists, start=1):
        if not texts:
            raise MismatchError(f"Example {number:,} has no reference: give each at least one.")
    return lists
