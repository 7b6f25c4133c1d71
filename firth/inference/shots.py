"""Which examples a prompt shows: some at random, as many of each label, or the nearest ones.

A draw is a hash of (seed, draw, example): another draw shows other examples, and what is shown does
not depend on how many questions are asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from firth.draws import Floats, Keys, derive, derive_one
from firth.errors import Misuse

PICKS = ("random", "balanced", "nearest")
SHOTS, ORDER = 0x5407, 1  # what is drawn: examples, the order they are shown in
ROWS = 256  # questions that are compared with all examples at once


def random_shots(there: int, shots: int, *, seed: int = 0, draw: int = 0) -> list[int]:
    """Some of all examples, in an order of their own.

    >>> random_shots(100, 3), random_shots(100, 3, draw=1)
    ([99, 82, 52], [55, 52, 74])
    """
    _check(shots, there)
    order = np.argsort(_keys(seed, draw, there), kind="stable")
    return [int(i) for i in order[:shots]]


def balanced_shots(labels: Sequence[Any], shots: int, *, seed: int = 0, draw: int = 0) -> list[int]:
    """As many examples of each label as of any other, to within one; a rare one may run out.

    >>> labels = ["good"] * 8 + ["bad"] * 2
    >>> sorted(labels[i] for i in balanced_shots(labels, 4))
    ['bad', 'bad', 'good', 'good']
    """
    _check(shots, len(labels))
    keys = _keys(seed, draw, len(labels))
    groups: dict[Any, list[int]] = {}
    for i in np.argsort(keys, kind="stable").tolist():
        groups.setdefault(labels[i], []).append(i)
    # The first of each label, then the second of each, …; whose label is drawn first comes first.
    ranks = {i: (rank, keys[i]) for group in groups.values() for rank, i in enumerate(group)}
    chosen = sorted(ranks, key=ranks.__getitem__)[:shots]
    return sorted(chosen, key=lambda i: int(derive(keys[i], ORDER)))


def nearest_shots(questions: Any, examples: Any, shots: int) -> Iterator[list[int]]:
    """For each question the examples most like it, the nearest last (Liu et al. 2022, KATE).

    Both are rows of vectors of length one, dense or sparse.

    >>> space = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> list(nearest_shots(np.array([[0.0, 1.0]]), space, 2))
    [[1, 2]]
    """
    _check(shots, examples.shape[0])
    for begin in range(0, questions.shape[0], ROWS):
        alike: Any = questions[begin : begin + ROWS] @ examples.T
        rows: Floats = alike if isinstance(alike, np.ndarray) else alike.toarray()
        for row in rows:
            yield np.argsort(-row, kind="stable")[:shots][::-1].tolist()


def word_vectors(questions: Sequence[str], examples: Sequence[str]) -> tuple[Any, Any]:
    """What nearness is measured by: words, those rare among the examples counting more (tf-idf).

    >>> asked, shown = word_vectors(["a fine film"], ["A dull film.", "A fine day, a fine film!"])
    >>> list(nearest_shots(asked, shown, 1))
    [[1]]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    made = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True)
    try:
        shown = made.fit_transform(examples)
    except ValueError as error:  # not a word in them
        raise Misuse("The examples hold no words to be near to; pick them at random.") from error
    return made.transform(questions), shown


def _keys(seed: int, draw: int, there: int) -> Keys:
    return derive(derive_one(derive_one(seed, SHOTS), draw), np.arange(there))


def _check(shots: int, there: int) -> None:
    if shots > there:
        raise Misuse(
            f"{shots} examples are to be shown, but there are only {there}; ask for fewer."
        )
