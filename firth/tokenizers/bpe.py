"""Train byte-pair encoding from word counts (Gage 1994; Sennrich et al. 2016).

The most frequent pair of adjacent symbols is merged to a new symbol until the vocabulary is full.
Ties are broken by the smaller ids, as in the `tokenizers` library: from the same counts both learn
the same merges in the same order. All words lie end to end in flat arrays, so millions of distinct
words fit in memory. `reference.py` has the plain version.

    N  symbols in all distinct words     M  positions of one pair, i.e. of its left symbol
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

NONE = -1  # as a position: no neighbour; as a symbol: merged into the left neighbour


@dataclass(frozen=True, kw_only=True)
class BpeConfig:
    """Options of BPE training."""

    size: int  # vocabulary size, including special tokens and the alphabet
    min_frequency: int = 2  # rarer pairs are not merged
    specials: tuple[str, ...] = ()  # special tokens, which get the first ids
    alphabet: str = ""  # characters that get an id even if no word contains them
    max_alphabet: int | None = None  # limit of the alphabet to the most frequent characters
    prefix: str = ""  # marks a symbol inside a word: WordPiece's "##"
    suffix: str = ""  # marks a symbol that ends a word: GPT-1's "</w>"


@dataclass(frozen=True)
class MergeStep:
    """One merge of the training: two neighbouring tokens become one.

    >>> MergeStep("##g", "##s", "##gs", 5, 20, 5).score
    0.05
    """

    left: str
    right: str
    token: str
    count: int  # occurrences of the pair before the merge, by which it was chosen
    left_count: int  # occurrences of the two tokens before the merge
    right_count: int

    @property
    def score(self) -> float:
        """WordPiece's score (Schuster and Nakajima 2012): count / (left_count * right_count)."""
        return self.count / (self.left_count * self.right_count)


@dataclass(frozen=True)
class BpeModel:
    """A vocabulary in the order of its ids, and the merges that built it."""

    tokens: list[str]
    steps: list[MergeStep]

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs in the order in which they were merged."""
        return [(step.left, step.right) for step in self.steps]

    @property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return {token: i for i, token in enumerate(self.tokens)}


def learn_merges(
    words: Sequence[str],
    counts: Sequence[int] | Longs,
    config: BpeConfig,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BpeModel:
    """Learn merges from distinct words and their counts.

    The example of Sennrich et al. (2016), with the end of a word marked:

    >>> words, counts = ["low", "lower", "newest", "widest"], [5, 2, 6, 3]
    >>> steps = learn_merges(words, counts, BpeConfig(size=99, suffix="</w>")).steps
    >>> [(step.left, step.right, step.count) for step in steps[:3]]
    [('e', 's', 9), ('es', 't</w>', 9), ('l', 'o', 7)]
    """
    weights = np.asarray(counts, dtype=np.int64)
    tokens, symbols, owners = _spell(words, weights, config)
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = _Pairs(symbols, owners, weights)
    steps: list[MergeStep] = []
    while len(tokens) < config.size and (best := pairs.most_frequent(config.min_frequency)):
        left, right, count, places = best
        token = tokens[left] + tokens[right].removeprefix(config.prefix)
        new = ids.setdefault(token, len(tokens))
        if new == len(tokens):
            tokens.append(token)
        parts = pairs.symbol_counts[left], pairs.symbol_counts[right]
        steps.append(MergeStep(tokens[left], tokens[right], token, count, *parts))
        pairs.merge(left, right, new, places)
        if len(steps) % 256 == 0:
            progress(len(tokens), config.size)
    return BpeModel(tokens, steps)


def _spell(words: Sequence[str], weights: Longs, config: BpeConfig) -> tuple[list[str], Ints, Ints]:
    """Split words into characters; return the initial tokens, and symbol and word of each position.

    The tokens come in the order of their ids.
    """
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    codes = np.frombuffer("".join(words).encode("utf-32-le"), dtype=np.uint32)
    owners = np.repeat(np.arange(len(words), dtype=np.int32), lengths)
    alphabet = _alphabet(codes, weights[owners], config)
    tokens = list(dict.fromkeys([*config.specials, *map(chr, alphabet)]))

    ends = np.cumsum(lengths)
    marks = np.zeros(len(codes), dtype=np.int64)  # bit 0: not first in a word, bit 1: last
    if config.prefix:
        marks += 1
        marks[(ends - lengths)[lengths > 0]] -= 1
    if config.suffix:
        marks[ends[lengths > 0] - 1] += 2
    kept = np.isin(codes, alphabet)  # characters outside the alphabet are dropped
    forms, symbols = np.unique(codes[kept] * np.int64(4) + marks[kept], return_inverse=True)

    ids = {token: i for i, token in enumerate(tokens)}
    id_of_form = np.empty(len(forms), dtype=np.int32)
    for i, form in enumerate(forms.tolist()):
        token = config.prefix * (form & 1) + chr(form >> 2) + config.suffix * (form >> 1 & 1)
        id_of_form[i] = ids.setdefault(token, len(ids))
    return list(ids), id_of_form[symbols], owners[kept]


def _alphabet(codes: NDArray[np.uint32], weights: Longs, config: BpeConfig) -> list[int]:
    """Return the sorted code points of the alphabet: the most frequent ones if it is limited."""
    counts = np.bincount(codes, weights=weights)
    always = [ord(character) for character in config.alphabet]
    seen = [code for code in np.flatnonzero(counts).tolist() if code not in set(always)]
    if config.max_alphabet is not None:
        seen.sort(key=lambda code: (-counts[code], code))
        seen = seen[: max(0, config.max_alphabet - len(always))]
    return sorted(always + seen)


class _Pairs:
    """The words as linked lists of symbols, and a priority queue of pairs by count.

    A queue entry may be out of date: its count is compared with `counts` when it is popped, and its
    positions with the symbols when they are merged. A position never becomes valid again.
    """

    def __init__(self, symbols: Ints, owners: Ints, weights: Longs) -> None:
        self.symbols, self.owners, self.weights = symbols, owners, weights
        inner = owners[1:] == owners[:-1]  # (N - 1,) both positions in one word
        here = np.arange(len(symbols), dtype=np.int32)
        self.before = np.full(len(symbols), NONE, dtype=np.int32)
        self.after = np.full(len(symbols), NONE, dtype=np.int32)
        self.before[1:][inner] = here[:-1][inner]
        self.after[:-1][inner] = here[1:][inner]

        totals = np.bincount(symbols, weights[owners]).astype(np.int64).tolist()
        self.symbol_counts: Counter[int] = Counter(dict(enumerate(totals)))
        self.counts: dict[int, int] = {}
        self.places: dict[int, Ints] = {}  # positions of each pair that may still be merged
        self.queue: list[tuple[int, int]] = []  # (-count, pair)
        places = here[:-1][inner]
        keys = _key(symbols[places], symbols[places + 1])
        self._change(keys, weights[owners[places]], places)

    def most_frequent(self, at_least: int) -> tuple[int, int, int, Ints] | None:
        """Pop the most frequent pair: its two symbols, its count and its positions."""
        while self.queue:
            count, pair = heapq.heappop(self.queue)
            if -count != self.counts[pair]:
                heapq.heappush(self.queue, (-self.counts[pair], pair))
            elif -count < max(1, at_least):
                return None
            elif pair in self.places:
                return pair >> 32, pair & 0xFFFFFFFF, -count, self.places.pop(pair)
        return None

    def merge(self, left: int, right: int, new: int, places: Ints) -> None:
        """Replace `left right` by `new` at the positions that still hold the pair."""
        symbols, before, after = self.symbols, self.before, self.after
        seconds = after[places]
        valid = (symbols[places] == left) & (seconds != NONE) & (symbols[seconds] == right)
        places, seconds = places[valid], seconds[valid]
        if left == right:
            places, seconds = _without_overlaps(places, seconds)
        rights = after[seconds]
        has_left, has_right = before[places] != NONE, rights != NONE
        symbols[places], symbols[seconds] = new, NONE
        after[places] = rights
        before[rights[has_right]] = places[has_right]

        # As if merged from left to right: the left neighbour may be new, the right one is old.
        lefts = before[places][has_left]
        left_symbols, right_symbols = symbols[lefts], symbols[rights[has_right]]
        right_symbols[right_symbols == new] = left
        weights = self.weights[self.owners[places]]
        merged = int(weights.sum())
        for symbol, change in ((left, -merged), (right, -merged), (new, merged)):
            self.symbol_counts[symbol] += change
        lost = _key(left_symbols, left), _key(right, right_symbols)
        gained = _key(left_symbols, new), _key(new, right_symbols)
        amounts = weights[has_left], weights[has_right]
        self._change(
            np.concatenate(lost + gained),
            np.concatenate((-amounts[0], -amounts[1], *amounts)),
            np.concatenate((lefts, places[has_right])),
        )

    def _change(self, pairs: Longs, amounts: Longs, places: Ints) -> None:
        """Add amounts to the counts of pairs; the last len(places) pairs are new and are queued."""
        if not len(pairs):
            return
        order = np.argsort(pairs, kind="stable")
        starts = np.flatnonzero(np.diff(pairs[order], prepend=-1))
        totals = np.add.reduceat(amounts[order], starts)
        new = len(pairs) - len(places)
        ends = np.append(starts[1:], len(pairs))
        is_new = order[ends - 1] >= new  # the sort is stable: new pairs come last in their group
        keys = pairs[order[starts]]
        for pair, start, end, total, queued in zip(
            *(column.tolist() for column in (keys, starts, ends, totals, is_new)), strict=True
        ):
            count = self.counts[pair] = self.counts.get(pair, 0) + total
            if queued and count > 0:
                heapq.heappush(self.queue, (-count, pair))
                group = order[start:end]
                self.places[pair] = places[group[group >= new] - new]


def _key(left: Ints | int, right: Ints | int) -> Longs:
    """Pack two symbols into one integer with the same order."""
    return np.asarray(left, dtype=np.int64) << 32 | np.asarray(right, dtype=np.int64)


def _without_overlaps(places: Ints, seconds: Ints) -> tuple[Ints, Ints]:
    """Of overlapping positions (a a a), keep the first, third, … of each run."""
    order = np.argsort(places)
    places, seconds = places[order], seconds[order]
    index = np.arange(len(places))
    begins = places != np.concatenate(([NONE], seconds[:-1]))
    kept = (index - np.maximum.accumulate(np.where(begins, index, 0))) % 2 == 0
    return places[kept], seconds[kept]
