"""Mixtures of sources: in which proportions documents of several sources or languages are sampled.

A mixture is a fraction of the training tokens for each source. Small sources are repeated, large
ones are seen in part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from firth.data.shards import Shards
from firth.utils.errors import UsageError
from firth.utils.rng import Keys, Longs, derive_keys

MAX_COPIES = 4  # mean copies of a document in an epoch; limits the memory of its order
PHASE = 41  # name of the random draw


def parse_mixture(text: str) -> dict[str, float]:
    """Parse the weights of sources.

    >>> parse_mixture("en=0.3, ha=0.7")
    {'en': 0.3, 'ha': 0.7}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, weight = (piece.strip() for piece in part.partition("="))
        if not equals or not name or name in weights:
            raise UsageError(f"--mixture takes weights such as en=0.3,ha=0.7, not {text!r}.")
        try:
            weights[name] = float(weight)
        except ValueError as error:
            raise _bad_weight(name, weight) from error
    return weights


def _bad_weight(name: str, weight: object) -> UsageError:
    return UsageError(f"The weight of {name} in --mixture must be a positive number, not {weight}.")


def resolve_mixture(
    shards: Shards, weights: Mapping[str, float] | str | None, alpha: float | None
) -> dict[str, float] | None:
    """Return the fraction of each source, from weights or from `alpha`; None without either."""
    if weights is None and alpha is None:
        return None
    if weights is not None and alpha is not None:
        raise UsageError("Give --mixture or --mixture-alpha, not both.")
    if not shards.source_names:
        raise UsageError(
            f"{shards.path} has no named sources to mix; name them when you prepare the text: "
            "`firth prepare en=PATH ha=PATH`."
        )
    if alpha is not None:
        return smoothed_mixture(shards.source_tokens, alpha)
    weights = parse_mixture(weights) if isinstance(weights, str) else weights
    if not isinstance(weights, Mapping) or not weights:
        raise UsageError(f"--mixture takes weights such as en=0.3,ha=0.7, not {weights!r}.")
    for name, weight in weights.items():
        _check_weight(shards, name, weight)
    total = math.fsum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _check_weight(shards: Shards, name: str, weight: object) -> None:
    if name not in shards.source_names:
        known = ", ".join(shards.source_names)
        raise UsageError(f"--mixture has {name!r}, but {shards.path} has the sources {known}.")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise _bad_weight(name, weight)
    if not shards.source_tokens[name]:
        raise UsageError(f"--mixture has {name!r}, but {shards.path} has no training text of it.")


def smoothed_mixture(tokens: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Return fractions proportional to the size of each source to the power of `alpha`.

    With 1, the sources keep their proportions; with 0, all are equal. XLM-R uses 0.3 (Conneau et
    al. 2020, §3.1).

    >>> smoothed_mixture({"en": 900, "ha": 100}, alpha=0.5)
    {'en': 0.75, 'ha': 0.25}
    """
    check_alpha(alpha)
    total = sum(tokens.values())
    powers = {name: (count / total) ** alpha for name, count in tokens.items() if count}
    return {name: power / math.fsum(powers.values()) for name, power in powers.items()}


def check_alpha(alpha: float) -> None:
    """Raise a usage error unless `alpha` is a number from 0 to 1."""
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise UsageError(f"--mixture-alpha must be from 0 to 1, not {alpha}.")


class RepetitionSchedule:
    """How often each epoch contains a document, so that sources have their fractions of the tokens.

    A document of a source that is repeated 2.5 times per epoch occurs twice in one epoch and three
    times in the next; half of the source's documents begin with two. An epoch has as many tokens as
    the sources in the mixture, or fewer if it would repeat documents more than 4 times on average.
    """

    def __init__(self, shards: Shards, mixture: Mapping[str, float], seed: int) -> None:
        numbers = [shards.source_names.index(name) for name in mixture]
        fractions = np.zeros(len(shards.source_names))
        fractions[numbers] = list(mixture.values())
        self.documents: Longs = np.flatnonzero(fractions[shards.sources] > 0)
        sources = shards.sources[self.documents]
        tokens = np.maximum(1, list(shards.source_tokens.values()))
        documents = np.bincount(sources, minlength=len(tokens))
        per_token = fractions / tokens  # copies of a document per token of the epoch
        most = MAX_COPIES * len(self.documents) / (per_token * documents).sum()
        self._copies = (per_token * min(tokens[numbers].sum(), most))[sources]
        # Spread the phases of a source's documents evenly, in random order.
        order = np.lexsort((derive_keys(derive_keys(seed, self.documents), PHASE), sources))
        ranks = np.arange(len(order)) - (np.cumsum(documents) - documents)[sources[order]]
        self._phases = np.empty(len(order))
        self._phases[order] = (ranks + 0.5) / documents[sources[order]]

    def repeat(self, epoch: int, keys: Keys) -> tuple[Longs, Keys]:
        """Return the documents of an epoch, repeated, and a random key for each occurrence."""
        before, after = (np.floor(self._copies * e + self._phases) for e in (epoch, epoch + 1))
        counts = (after - before).astype(np.int64)
        documents, keys = np.repeat(self.documents, counts), np.repeat(keys, counts)
        copies = np.arange(len(documents)) - np.repeat(np.cumsum(counts) - counts, counts)
        again = copies > 0
        keys[again] = derive_keys(keys[again], copies[again])
        return documents, keys
