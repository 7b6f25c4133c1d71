"""ROUGE, as computed by the package rouge_score without a stemmer (Lin 2004).

Words are runs of a-z and 0-9 in lower case: text in other scripts scores 0. rouge1 and rouge2 are
F-measures of shared unigrams and bigrams, rougeL of the longest common subsequence; rougeLsum takes
summaries with one sentence per line. Each is a mean over summaries.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import isqrt

from firth.metrics.bootstrap import Bootstrap, Metric, means
from firth.metrics.ngrams import References, ngrams, overlap, reference_lists

_WORD = re.compile(r"[a-z0-9]+")


def rouge_metrics(
    references: References, predicted: Sequence[str], bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute mean rouge1, rouge2, rougeL and rougeLsum; the best of several references counts.

    >>> reference = "The hare slept.\\nThe tortoise won."
    >>> metrics = rouge_metrics([reference], ["A tortoise won the race."])
    >>> {name: round(metric.value, 3) for name, metric in metrics.items()}
    {'rouge1': 0.545, 'rouge2': 0.222, 'rougeL': 0.364, 'rougeLsum': 0.545}
    """
    rows = [
        tuple(map(max, zip(*(_scores(text, pred) for text in texts), strict=True)))
        for texts, pred in zip(reference_lists(references, predicted), predicted, strict=True)
    ]
    names = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return means(columns, bootstrap, graded=True)


def _scores(reference: str, predicted: str) -> tuple[float, float, float, float]:
    true, pred = _words(reference), _words(predicted)
    common = len(common_places(true, pred))
    return (
        _f1(overlap(ngrams(true, 1), ngrams(pred, 1)), len(true), len(pred)),
        _f1(overlap(ngrams(true, 2), ngrams(pred, 2)), len(true) - 1, len(pred) - 1),
        _f1(common, len(true), len(pred)),
        _f1(_common_by_line(reference, predicted), len(true), len(pred)),
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _f1(shared: int, true: int, pred: int) -> float:
    return 2 * shared / (true + pred) if shared else 0.0


def _common_by_line(reference: str, predicted: str) -> int:
    """Count words in the union of the common subsequences of each line with all predicted lines.

    Each predicted word counts once (Lin 2004, §3.2, as ROUGE-1.5.5 does it).
    """
    lines = [_words(line) for line in predicted.split("\n")]
    found: Counter[Hashable] = Counter()
    for line in map(_words, reference.split("\n")):
        places = set().union(*(common_places(line, other) for other in lines))
        found.update(line[place] for place in places)
    return overlap(found, Counter(word for line in lines for word in line))


# --- the longest common subsequence -------------------------------------------------------------


def common_places(true: Sequence[Hashable], pred: Sequence[Hashable]) -> set[int]:
    """Find the positions in ``true`` of a longest common subsequence, with ROUGE's tie-breaking.

    A column of the dynamic programming table is one integer, updated by additions (Hyyrö 2004). One
    in `stretch` columns is stored; the others are recomputed during backtracking.

    >>> sorted(common_places("the hare and the tortoise".split(), "the tortoise".split()))
    [3, 4]
    """
    known = set(pred)
    places = [place for place, item in enumerate(true) if item in known]  # others cannot match
    masks: dict[Hashable, int] = {}
    for bit, place in enumerate(places):
        masks[true[place]] = masks.get(true[place], 0) | 1 << bit
    nothing = (1 << len(places)) - 1  # a bit is 0 where the length grows by one
    stretch = isqrt(len(pred)) + 1
    columns = enumerate(_columns(nothing, pred, masks, nothing))
    kept = [column for number, column in columns if number % stretch == 0]
    found, bit = set(), len(places)
    for number in reversed(range(len(kept))):
        items = pred[number * stretch : (number + 1) * stretch]
        local, left = list(_columns(kept[number], items, masks, nothing)), len(items)
        while bit and left:
            if true[places[bit - 1]] == items[left - 1]:
                found.add(places[bit - 1])
                bit, left = bit - 1, left - 1
            elif local[left] >> (bit - 1) & 1:
                bit -= 1
            else:
                left -= 1
    return found


def _columns(
    column: int, items: Iterable[Hashable], masks: dict[Hashable, int], full: int
) -> Iterator[int]:
    """Yield the initial column and the column after each item."""
    yield column
    for item in items:
        matched = column & masks.get(item, 0)
        column = (column + matched | column - matched) & full
        yield column
