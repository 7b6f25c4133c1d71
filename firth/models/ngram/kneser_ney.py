"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999; Heafield et al. 2013).

    C  distinct n-grams of one order     B  those of the order below     V  vocabulary size

With h a context, h' the same without its first word, and a(hw) the adjusted count of an n-gram:

    p(w | h) = (a(hw) - D(a(hw))) / sum_x a(hx)  +  b(h) p(w | h')
    b(h)     = sum_x D(a(hx)) / sum_x a(hx)

The adjusted count is the count for n-grams of the highest order and for those that begin with <s>,
and otherwise the number of different words before the n-gram: "Francisco" is frequent, but follows
few words. With t_k the number of n-grams of an order that have the adjusted count k,

    D(k) = k - (k + 1) t_1 t_(k+1) / ((t_1 + 2 t_2) t_k)    for k = 1, 2, and 3 for all above

Below the unigrams is the uniform distribution over the tokens that can be predicted (Heafield et
al., section 3.4): so unseen tokens, and <unk>, have a probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firth.models.ngram.counting import BLOCK, Ints, NgramCounts
from firth.utils.rng import Bools, Floats, Longs

FALLBACK = (0.5, 1.0, 1.5)  # the discounts of `lmplz --discount_fallback`
Reals = NDArray[np.float32]


@dataclass(frozen=True)
class SmoothedOrder:
    """The n-grams of one order with natural log-probabilities and log back-off weights."""

    keys: Longs  # (C,)
    log_probs: Reals  # (C,)
    backoffs: Reals  # (C,) empty for the highest order


@dataclass(frozen=True)
class KneserNey:
    """Smooths counts; `note` is called with a message about discounts that are not estimated."""

    counts: Sequence[NgramCounts]  # of the orders 1, 2, …
    bos: int
    predicted: Bools  # (V,) tokens that can be predicted: not <s>, not padding
    note: Callable[[str], None]

    @property
    def vocab_size(self) -> int:
        return len(self.predicted)

    def smooth(self) -> list[SmoothedOrder]:
        """Compute probabilities and back-off weights of all orders, from the lowest."""
        uniform = self.predicted / self.predicted.sum()
        probs = uniform.astype(np.float32)  # (B,) of the order below
        smoothed: list[SmoothedOrder] = []
        for n, (order, adjusted) in enumerate(
            zip(self.counts, self.adjusted_counts(), strict=True), start=1
        ):
            discounts = self._discounts(n, adjusted)
            totals, backoffs = self._contexts(n, adjusted, discounts)
            if smoothed:
                smoothed[-1] = SmoothedOrder(
                    smoothed[-1].keys, smoothed[-1].log_probs, _log(backoffs)
                )
            probs = self._interpolate(n, adjusted, discounts, totals, backoffs, probs)
            smoothed.append(SmoothedOrder(order.keys, _log(probs), np.empty(0, np.float32)))
        return smoothed

    def adjusted_counts(self) -> Iterator[Ints]:
        """Yield the adjusted counts of each order."""
        first, last = self.bos, self.bos + 1  # the n-grams that begin with <s> are neighbours
        for n, order in enumerate(self.counts, start=1):
            if n > 1:
                bounds = np.array([first, last]) * self.vocab_size
                first, last = np.searchsorted(order.keys, bounds).tolist()
            if n == len(self.counts):
                yield order.counts
                return
            adjusted = np.zeros(len(order), dtype=np.int32)
            for part in _blocks(len(self.counts[n])):
                suffixes = self.counts[n].suffixes[part].astype(np.intp)  # ten times as fast
                np.add.at(adjusted, suffixes, np.int32(1))
            if n > 1:
                adjusted[first:last] = order.counts[first:last]
            yield adjusted

    def _discounts(self, n: int, adjusted: Ints) -> Floats:
        """Return what is subtracted from an adjusted count of 0, 1, 2, and 3 or more."""
        parts = (np.minimum(adjusted[part], 5) for part in _blocks(len(adjusted)))
        none = np.zeros(6, dtype=np.int64)
        times = sum((np.bincount(part, minlength=6) for part in parts), start=none)[1:5]
        found = estimate_discounts(times)
        if found is None:
            found = np.array(FALLBACK)
            self.note(
                f"The discounts of {n}-grams are 0.5, 1 and 1.5: they cannot be estimated, because "
                f"{times[0]:,} {n}-grams have the count 1, {times[1]:,} the count 2, {times[2]:,} "
                f"the count 3 and {times[3]:,} the count 4."
            )
        return np.concatenate([[0.0], found])

    def _contexts(self, n: int, adjusted: Ints, discounts: Floats) -> tuple[Reals, Reals]:
        """Return each context's sum of adjusted counts, and its back-off weight."""  # (B,)
        contexts = len(self.counts[n - 2]) if n > 1 else 1
        totals, discounted = np.zeros((2, contexts), dtype=np.float32)
        for part, parents in self._contexts_of(n):
            first, own = int(parents[0]), parents - parents[0]
            inside = slice(first, int(parents[-1]) + 1)
            counts = adjusted[part]
            totals[inside] += np.bincount(own, counts)
            discounted[inside] += np.bincount(own, discounts[np.minimum(counts, 3)])
        unused = totals == 0  # such as an n-gram that ends with </s>
        discounted[unused] = totals[unused] = 1.0
        discounted /= totals
        return totals, discounted

    def _interpolate(
        self,
        n: int,
        adjusted: Ints,
        discounts: Floats,
        totals: Reals,
        backoffs: Reals,
        lower: Reals,
    ) -> Reals:
        """Return the probability of each n-gram; `lower` are those of the order below."""  # (C,)
        order = self.counts[n - 1]
        probs = np.empty(len(order), dtype=np.float32)
        for part, parents in self._contexts_of(n):
            counts = adjusted[part]
            own = (counts - discounts[np.minimum(counts, 3)]) / totals[parents]
            shorter = lower[order.suffixes[part]] if n > 1 else lower[part]
            probs[part] = own + backoffs[parents] * shorter
        return probs

    def _contexts_of(self, n: int) -> Iterator[tuple[slice, Longs]]:
        """Yield blocks of n-grams with the numbers of their contexts."""
        keys = self.counts[n - 1].keys
        for part in _blocks(len(keys)):
            yield part, keys[part] // self.vocab_size


def _blocks(count: int) -> Iterator[slice]:
    """Yield the parts of an array that are computed at a time."""
    for begin in range(0, count, BLOCK):
        yield slice(begin, min(begin + BLOCK, count))


def estimate_discounts(times: Longs) -> Floats | None:
    """Return D(1), D(2) and D(3+) from t_1 … t_4; None if they cannot be estimated.

    As in `lmplz`, that is if t_1, t_2 or t_3 is 0, or a discount is not positive.

    >>> estimate_discounts(np.array([6, 3, 2, 1])).tolist()
    [0.5, 1.0, 2.0]
    >>> estimate_discounts(np.array([6, 3, 0, 1])) is None
    True
    """
    if (times[:3] == 0).any():
        return None
    counts = np.arange(1, 4)
    scale = times[0] / (times[0] + 2 * times[1])
    discounts: Floats = counts - (counts + 1) * scale * times[1:] / times[:3]
    return discounts if ((discounts > 0) & (discounts <= counts)).all() else None


def _log(probs: Reals) -> Reals:
    """Return natural logarithms; those of tokens that are never predicted are -inf."""
    with np.errstate(divide="ignore"):
        logs: Reals = np.log(probs)
    return logs
