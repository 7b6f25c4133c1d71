"""Plain byte-pair encoding (Sennrich et al. 2016, algorithm 1), the truth of the tests of `bpe.py`.

All pairs are counted again after every merge, so this is slow.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise


def learn_merges_slowly(words: dict[tuple[str, ...], int], size: int) -> list[tuple[str, str]]:
    """Merge the most frequent pair of symbols until `size` tokens or no pair occurs twice.

    Of equally frequent pairs, the one whose symbols are older in the vocabulary is merged; at first
    the vocabulary is the sorted alphabet.

    >>> words = {tuple("low"): 5, tuple("lower"): 2, tuple("newest"): 6, tuple("widest"): 3}
    >>> learn_merges_slowly(words, size=13)
    [('e', 's'), ('es', 't'), ('l', 'o')]
    """
    ids = {symbol: i for i, symbol in enumerate(sorted({s for word in words for s in word}))}
    merges: list[tuple[str, str]] = []
    while len(ids) < size:
        counts: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                counts[pair] += count
        best = min(counts, key=lambda p: (-counts[p], ids[p[0]], ids[p[1]]), default=None)
        if best is None or counts[best] < 2:
            break
        ids.setdefault("".join(best), len(ids))
        merges.append(best)
        words = {merge_pair(word, best): count for word, count in words.items()}
    return merges


def merge_pair(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    """Join every occurrence of a pair, from left to right.

    >>> merge_pair(("a", "a", "a", "b"), ("a", "a"))
    ('aa', 'a', 'b')
    """
    for i in range(len(word) - 1):
        if word[i : i + 2] == pair:
            return (*word[:i], "".join(pair), *merge_pair(word[i + 2 :], pair))
    return word
