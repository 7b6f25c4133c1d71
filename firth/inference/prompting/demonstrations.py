"""Selection of few-shot examples: random, balanced by label, or nearest to the question.

Random selections are hashes of (seed, draw, example): another draw gives other examples, and a
selection does not depend on the number of questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from firth.utils.errors import UsageError
from firth.utils.rng import Floats, Keys, derive_key, derive_keys

SHOTS_STREAM, ORDER_STREAM = 0x5407, 1  # random number streams: selection, order
CHUNK_SIZE = 256  # questions compared with all examples at once


def random_shots(num_examples: int, shots: int, *, seed: int = 0, draw: int = 0) -> list[int]:
    """Select examples at random, in random order.

    >>> random_shots(100, 3), random_shots(100, 3, draw=1)
    ([99, 82, 52], [55, 52, 74])
    """
    _check_count(shots, num_examples)
    order = np.argsort(_keys(seed, draw, num_examples), kind="stable")
    return [int(i) for i in order[:shots]]


def balanced_shots(labels: Sequence[Any], shots: int, *, seed: int = 0, draw: int = 0) -> list[int]:
    """Select an equal number of examples per label, as far as there are enough.

    >>> labels = ["good"] * 8 + ["bad"] * 2
    >>> sorted(labels[i] for i in balanced_shots(labels, 4))
    ['bad', 'bad', 'good', 'good']
    """
    _check_count(shots, len(labels))
    keys = _keys(seed, draw, len(labels))
    groups: dict[Any, list[int]] = {}
    for i in np.argsort(keys, kind="stable").tolist():
        groups.setdefault(labels[i], []).append(i)
    # The first example of each label, then the second of each, …; ties by random key.
    ranks = {i: (rank, keys[i]) for group in groups.values() for rank, i in enumerate(group)}
    chosen = sorted(ranks, key=ranks.__getitem__)[:shots]
    return sorted(chosen, key=lambda i: int(derive_keys(keys[i], ORDER_STREAM)))


def nearest_shots(questions: Any, examples: Any, shots: int) -> Iterator[list[int]]:
    """Select the examples most similar to each question, nearest last (Liu et al. 2022, KATE).

    Both are matrices of unit vectors, dense or sparse.

    >>> examples = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    >>> list(nearest_shots(np.array([[0.0, 1.0]]), examples, 2))
    [[1, 2]]
    """
    _check_count(shots, examples.shape[0])
    for begin in range(0, questions.shape[0], CHUNK_SIZE):
        product: Any = questions[begin : begin + CHUNK_SIZE] @ examples.T
        cosines: Floats = product if isinstance(product, np.ndarray) else product.toarray()
        for row in cosines:
            yield np.argsort(-row, kind="stable")[:shots][::-1].tolist()


def tfidf_vectors(questions: Sequence[str], examples: Sequence[str]) -> tuple[Any, Any]:
    """Compute TF-IDF vectors of questions and examples; the examples determine the weights.

    >>> texts = ["A dull film.", "A fine day, a fine film!"]
    >>> list(nearest_shots(*tfidf_vectors(["a fine film"], texts), 1))
    [[1]]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True)
    try:
        example_vectors = vectorizer.fit_transform(examples)
    except ValueError as error:  # empty vocabulary
        raise UsageError(
            "The examples contain no words, so none is nearest; select them at random."
        ) from error
    return vectorizer.transform(questions), example_vectors


def _keys(seed: int, draw: int, count: int) -> Keys:
    return derive_keys(derive_key(derive_key(seed, SHOTS_STREAM), draw), np.arange(count))


def _check_count(shots: int, num_examples: int) -> None:
    if shots > num_examples:
        raise UsageError(
            f"{shots} examples were requested, but there are only {num_examples}; request fewer."
        )
