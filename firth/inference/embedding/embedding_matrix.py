"""Vectors for the vocabulary of another network, from a vector file or any model.

n  words of the vocabulary     W  size of a vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.formats.word_vectors.reading import read_word_vectors
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.inference.embedding.embedder import Embedder
from firth.inference.embedding.word_lookup import (
    COMPOSED,
    EXACT,
    LOWERCASED,
    Floats,
    FoundWords,
    find_ids,
    look_up,
)
from firth.utils.errors import MismatchError
from firth.utils.rng import derive_keys, uniform

SHOWN = 3  # words in an error


@dataclass(frozen=True)
class VectorCoverage:
    """How many words of a vocabulary got a vector, and how they were found."""

    words: int  # of the vocabulary
    exact: int
    lowercased: int  # found as the lower-cased word
    composed: int  # of character n-grams

    @property
    def fraction(self) -> float:
        """The fraction of words with a vector."""
        return (self.exact + self.lowercased + self.composed) / max(1, self.words)

    @property
    def summary(self) -> str:
        """One sentence with the numbers.

        >>> VectorCoverage(words=10, exact=7, lowercased=1, composed=0).summary
        '8 of 10 words have a vector (1 as the lower-cased word); the others are random.'
        """
        kinds = {"as the lower-cased word": self.lowercased, "of n-grams": self.composed}
        listed = ", ".join(f"{count:,} {name}" for name, count in kinds.items() if count)
        known = self.exact + self.lowercased + self.composed
        how = f" ({listed})" if listed else ""
        return f"{known:,} of {self.words:,} words have a vector{how}; the others are random."


def embedding_matrix(
    source: Embedder | WordVectors | str | Path,
    words: Sequence[str],
    *,
    name: str = "",
    seed: int = 0,
) -> tuple[Floats, VectorCoverage]:
    """Return a vector for each word (n, W), and how many are in the source.

    `source` is a file of word vectors, or the embedder of a model (`Model.embedder`), which may be
    any network: an encoder embeds each word as a text; `name` is what errors call it. A word is
    looked up as it is, then lower-cased. Vectors of unknown words are uniform random numbers with
    the mean and the variance of the others (Kim 2014), which depend on `seed` and the row only.

    >>> small = WordVectors(["sun", "moon"], np.array([[1, 0], [0, 1]], dtype=np.float32))
    >>> matrix, coverage = embedding_matrix(small, ["Sun", "star", "moon"])
    >>> matrix[[0, 2]].tolist(), round(coverage.fraction, 2)
    ([[1.0, 0.0], [0.0, 1.0]], 0.67)
    """
    if isinstance(source, str | Path):
        source = read_word_vectors(source)
    if isinstance(source, WordVectors):
        name, found = name or source.source, _look_up(source, words)
    else:
        name, found = name or "the model", look_up(source, words)
    if not found.known.any():
        shown = ", ".join(map(repr, words[:SHOWN]))
        raise MismatchError(
            f"None of the {len(words):,} words of the vocabulary ({shown}, …) has a vector in "
            f"{name}; use vectors of the same language and kind of words."
        )
    matrix = found.vectors
    unknown = np.flatnonzero(~found.known)
    matrix[unknown] = _random_rows(unknown, matrix[found.known], seed)
    counts = (int((found.how == kind).sum()) for kind in (EXACT, LOWERCASED, COMPOSED))
    return matrix, VectorCoverage(len(words), *counts)


def _look_up(vectors: WordVectors, words: Sequence[str]) -> FoundWords:
    ids, how = find_ids(words, {word: row for row, word in enumerate(vectors.words)}.get)
    found = np.zeros((len(words), vectors.dimension), dtype=np.float32)
    found[how > 0] = vectors.vectors[ids[how > 0]]
    return FoundWords(found, how)


def _random_rows(rows: np.typing.NDArray[np.int64], known: Floats, seed: int) -> Floats:
    """Draw vectors like the known ones, each from a hash of (seed, row, column)."""
    keys = derive_keys(derive_keys(seed, rows)[:, None], np.arange(known.shape[1]))
    half_width = np.sqrt(3) * known.std()  # of a uniform distribution with this deviation
    return (known.mean() + half_width * (2 * uniform(keys, 0) - 1)).astype(np.float32)
