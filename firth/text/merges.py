"""Byte-pair encoding learned from word counts (Gage 1994; Sennrich et al. 2016).

The most frequent pair of neighbouring symbols becomes a new symbol, again and again, until the
vocabulary is full. Among pairs of equal count the one with the smaller ids goes first. That is the
rule of the `tokenizers` library too: from the same counts both learn the same merges in the same
order. All words lie end to end in flat arrays, so that millions of distinct words fit in memory.

    N  symbols in all distinct words     M  places of one pair, each named by its left symbol
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

NONE = -1  # no neighbour on that side; as a symbol: merged into the left neighbour


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the learner starts from and where it stops."""

    size: int  # tokens in all: specials, alphabet and merges
    min_frequency: int = 2  # a pair seen less often is not merged
    specials: tuple[str, ...] = ()  # take the first ids, never part of a word
    alphabet: str = ""  # characters that get an id even when no word has them
    max_alphabet: int | None = None  # so many characters at most, the most frequent ones
    prefix: str = ""  # marks a symbol inside a word: WordPiece's "##"
    suffix: str = ""  # marks a symbol that ends a word: GPT-1's "</w>"


@dataclass(frozen=True)
class Learned:
    """A vocabulary in the order of its ids, and the merges that built it."""

    tokens: list[str]
    merges: list[tuple[str, str]]


def learn_merges(
    words: Sequence[str],
    counts: Sequence[int] | Longs,
    recipe: Recipe,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Learned:
    """Learn merges from distinct words and how often each stands in the text.

    The words of Sennrich et al. (2016), with the end of a word marked:

    >>> words, counts = ["low", "lower", "newest", "widest"], [5, 2, 6, 3]
    >>> learn_merges(words, counts, Recipe(size=99, suffix="</w>")).merges[:3]
    [('e', 's'), ('es', 't</w>'), ('l', 'o')]
    """
    weights = np.asarray(counts, dtype=np.int64)
    tokens, symbols, owners = _spell(words, weights, recipe)
    ids = {token: i for i, token in enumerate(tokens)}
    pairs = _Pairs(symbols, owners, weights)
    merges: list[tuple[int, int]] = []
    while len(tokens) < recipe.size and (best := pairs.most_frequent(recipe.min_frequency)):
        left, right, places = best
        token = tokens[left] + tokens[right].removeprefix(recipe.prefix)
        new = ids.setdefault(token, len(tokens))
        if new == len(tokens):
            tokens.append(token)
        merges.append((left, right))
        pairs.merge(left, right, new, places)
        if len(merges) % 256 == 0:
            progress(len(tokens), recipe.size)
    return Learned(tokens, [(tokens[left], tokens[right]) for left, right in merges])


def _spell(words: Sequence[str], weights: Longs, recipe: Recipe) -> tuple[list[str], Ints, Ints]:
    """Spell every word in characters: the first tokens, then symbol and word of each place."""
    lengths = np.fromiter(map(len, words), dtype=np.int64, count=len(words))
    codes = np.frombuffer("".join(words).encode("utf-32-le"), dtype=np.uint32)
    owners = np.repeat(np.arange(len(words), dtype=np.int32), lengths)
    alphabet = _alphabet(codes, weights[owners], recipe)
    tokens = list(dict.fromkeys([*recipe.specials, *map(chr, alphabet)]))

    ends = np.cumsum(lengths)
    marks = np.zeros(len(codes), dtype=np.int64)  # bit 0: not a word's first, bit 1: its last
    if recipe.prefix:
        marks += 1
        marks[(ends - lengths)[lengths > 0]] -= 1
    if recipe.suffix:
        marks[ends[lengths > 0] - 1] += 2
    kept = np.isin(codes, alphabet)  # words lose the characters outside the alphabet
    forms, symbols = np.unique(codes[kept] * np.int64(4) + marks[kept], return_inverse=True)

    ids = {token: i for i, token in enumerate(tokens)}
    id_of_form = np.empty(len(forms), dtype=np.int32)
    for i, form in enumerate(forms.tolist()):
        token = recipe.prefix * (form & 1) + chr(form >> 2) + recipe.suffix * (form >> 1 & 1)
        id_of_form[i] = ids.setdefault(token, len(ids))
    return list(ids), id_of_form[symbols], owners[kept]


def _alphabet(codes: NDArray[np.uint32], weights: Longs, recipe: Recipe) -> list[int]:
    """The code points that get an id, in order; the most frequent ones when they are limited."""
    counts = np.bincount(codes, weights=weights)
    always = [ord(character) for character in recipe.alphabet]
    seen = [code for code in np.flatnonzero(counts).tolist() if code not in set(always)]
    if recipe.max_alphabet is not None:
        seen.sort(key=lambda code: (-counts[code], code))
        seen = seen[: max(0, recipe.max_alphabet - len(always))]
    return sorted(always + seen)


class _Pairs:
    """The text as linked lists of symbols, and a queue of its pairs, the most frequent first.

    A queue entry may be out of date: its count is compared with `counts` when it comes up, and its
    places with the text when they are merged. Merging never makes an old place valid again.
    """

    def __init__(self, symbols: Ints, owners: Ints, weights: Longs) -> None:
        self.symbols, self.owners, self.weights = symbols, owners, weights
        inner = owners[1:] == owners[:-1]  # (N - 1,) both places in one word
        here = np.arange(len(symbols), dtype=np.int32)
        self.before = np.full(len(symbols), NONE, dtype=np.int32)
        self.after = np.full(len(symbols), NONE, dtype=np.int32)
        self.before[1:][inner] = here[:-1][inner]
        self.after[:-1][inner] = here[1:][inner]

        self.counts: dict[int, int] = {}
        self.places: dict[int, Ints] = {}  # of each pair that may still be merged
        self.queue: list[tuple[int, int]] = []  # (-count, pair)
        places = here[:-1][inner]
        keys = _key(symbols[places], symbols[places + 1])
        self._change(keys, weights[owners[places]], places)

    def most_frequent(self, at_least: int) -> tuple[int, int, Ints] | None:
        """Take the most frequent pair off the queue: its two symbols and its places."""
        while self.queue:
            count, pair = heapq.heappop(self.queue)
            if -count != self.counts[pair]:
                heapq.heappush(self.queue, (-self.counts[pair], pair))
            elif -count < max(1, at_least):
                return None
            elif pair in self.places:
                return pair >> 32, pair & 0xFFFFFFFF, self.places.pop(pair)
        return None

    def merge(self, left: int, right: int, new: int, places: Ints) -> None:
        """Replace `left right` by `new` at those places that still hold it."""
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

        # As if from left to right: the left neighbour may be new, the right one is still old.
        lefts = before[places][has_left]
        left_symbols, right_symbols = symbols[lefts], symbols[rights[has_right]]
        right_symbols[right_symbols == new] = left
        weights = self.weights[self.owners[places]]
        lost = _key(left_symbols, left), _key(right, right_symbols)
        gained = _key(left_symbols, new), _key(new, right_symbols)
        amounts = weights[has_left], weights[has_right]
        self._change(
            np.concatenate(lost + gained),
            np.concatenate((-amounts[0], -amounts[1], *amounts)),
            np.concatenate((lefts, places[has_right])),
        )

    def _change(self, pairs: Longs, amounts: Longs, places: Ints) -> None:
        """Add amounts to the counts of pairs; the last len(places) of them are new and queued."""
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
    """Two symbols as one number that sorts as the pair does."""
    return np.asarray(left, dtype=np.int64) << 32 | np.asarray(right, dtype=np.int64)


def _without_overlaps(places: Ints, seconds: Ints) -> tuple[Ints, Ints]:
    """Of places that overlap (a a a), keep the first, third, … of each run from the left."""
    order = np.argsort(places)
    places, seconds = places[order], seconds[order]
    index = np.arange(len(places))
    begins = places != np.concatenate(([NONE], seconds[:-1]))
    kept = (index - np.maximum.accumulate(np.where(begins, index, 0))) % 2 == 0
    return places[kept], seconds[kept]
