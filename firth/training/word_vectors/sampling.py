"""Subsampling of frequent words and the distribution of negatives (Mikolov et al. 2013b)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firth.utils.rng import Floats, Keys, Longs

NEGATIVE_EXPONENT = 0.75  # of the word counts


def keep_probabilities(counts: Longs, sample: float) -> Floats:
    """Return the probability that a token is kept, for each word.

    A word with more than a fraction `sample` of all tokens is kept with probability
    sqrt(sample / f) + sample / f, where f is its fraction; `sample` 0 keeps all tokens.

    >>> keep_probabilities(np.array([900, 100]), sample=0.1).round(3).tolist()
    [0.444, 1.0]
    """
    if sample == 0:
        return np.ones(len(counts))
    ratio = sample * counts.sum() / np.maximum(counts, 1)
    return np.minimum(np.sqrt(ratio) + ratio, 1.0)


class AliasTable(NamedTuple):
    """A discrete distribution that is sampled in constant time (Walker 1977; Vose 1991).

    A random word `i` is drawn uniformly, and replaced by `aliases[i]` unless a second random number
    is below `thresholds[i]`.
    """

    thresholds: NDArray[np.uint32]  # (V,) probabilities times 2 ** 32
    aliases: NDArray[np.int32]  # (V,)

    def sample(self, random: Keys) -> Longs:
        """Return a word for each 64-bit random number: 32 bits choose, 32 bits decide.

        >>> table = negative_distribution(np.array([16, 0, 1]))
        >>> from firth.utils.rng import derive_keys
        >>> np.bincount(table.sample(derive_keys(1, range(900))), minlength=3).tolist()
        [820, 0, 80]
        """
        size = np.uint64(len(self.thresholds))
        words = ((random >> np.uint64(32)) * size >> np.uint64(32)).astype(np.int64)
        keep = (random & np.uint64(0xFFFFFFFF)) < self.thresholds[words]
        return np.where(keep, words, self.aliases[words])


def negative_distribution(counts: Longs) -> AliasTable:
    """Return the distribution of negatives: counts to the power of 0.75, normalized."""
    weights = counts.astype(np.float64) ** NEGATIVE_EXPONENT
    scaled = (weights / weights.sum() * len(counts)).tolist()  # 1 on average
    thresholds, aliases = [1.0] * len(scaled), list(range(len(scaled)))
    small = [word for word, value in enumerate(scaled) if value < 1]
    large = [word for word, value in enumerate(scaled) if value >= 1]
    while small and large:
        word, donor = small.pop(), large.pop()
        thresholds[word], aliases[word] = scaled[word], donor
        scaled[donor] -= 1 - scaled[word]
        (small if scaled[donor] < 1 else large).append(donor)
    # What is left has probability 1, but for rounding: its alias is the word itself.
    bounds = np.minimum(np.array(thresholds) * 2.0**32, 2.0**32 - 1)
    return AliasTable(bounds.astype(np.uint32), np.array(aliases, dtype=np.int32))
