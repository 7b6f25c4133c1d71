"""Corpus BLEU and chrF, from 0 to 100, as sacreBLEU computes them by default (Post 2018).

BLEU (Papineni et al. 2002): the geometric mean of the precisions of 1- to 4-grams, times a brevity
penalty. Words are tokenized as in WMT's script (13a). If no n-gram of some order matches, half a
match is counted, and a quarter for the next such order ("exp" smoothing). chrF (Popović 2015):
F-score of 1- to 6-grams of characters without white space, with recall weighted twice as much as
precision. Matches are summed over the corpus before dividing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from firth.metrics.bootstrap import Bootstrap, Metric, Weights, divide, estimate
from firth.metrics.ngrams import References, ngrams, overlap, reference_lists
from firth.utils.rng import Floats

WORDS = 4  # highest n-gram order of BLEU
CHARACTERS = 6  # highest n-gram order of chrF
_RECALL = 2.0**2  # beta squared

_ENTITIES = {"&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
_CUTS = [
    (re.compile(r"([!-&(-+/:-@\[-`{-~])"), r" \1 "),  # ASCII punctuation but ' , - .
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),  # no digit before it
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),  # no digit after it
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
]


def translation_metrics(
    references: References, predicted: Sequence[str], bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute corpus bleu and chrf; each prediction has one reference or a list of them.

    >>> metrics = translation_metrics(["The dog bit the man."], ["The dog bit the man!"])
    >>> {name: round(metric.value, 2) for name, metric in metrics.items()}
    {'bleu': 75.98, 'chrf': 92.47}
    """
    lists = reference_lists(references, predicted)
    pairs = list(zip(lists, predicted, strict=True))
    words = np.array([_word_counts(*pair) for pair in pairs], dtype=np.float64)
    characters = np.array([_character_counts(*pair) for pair in pairs], dtype=np.float64)

    def score(weights: Weights) -> dict[str, Floats]:
        return {"bleu": _bleu(weights @ words), "chrf": _chrf(weights @ characters)}

    return estimate(score, len(pairs), bootstrap)


# --- BLEU ---------------------------------------------------------------------------------------


def tokenize_13a(text: str) -> list[str]:
    """Split a text into words as mteval-v13a does.

    >>> tokenize_13a("It's 3.5%, isn't &quot;it&quot;?")
    ["It's", '3.5', '%', ',', "isn't", '"', 'it', '"', '?']
    """
    text = text.rstrip().replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
    for entity, character in _ENTITIES.items():
        text = text.replace(entity, character)
    text = f" {text} "
    for pattern, replacement in _CUTS:
        text = pattern.sub(replacement, text)
    return text.split()


def _word_counts(references: list[str], predicted: str) -> list[int]:
    """Count: predicted and reference length, matches per order, predicted n-grams per order."""
    pred, true = tokenize_13a(predicted), [tokenize_13a(text) for text in references]
    # The reference closest in length; the shorter of two equally close ones.
    nearest = min((abs(len(words) - len(pred)), len(words)) for words in true)[1]
    orders = range(1, WORDS + 1)
    matches = []
    for order in orders:
        allowed: Counter[Hashable] = Counter()
        for words in true:
            allowed |= ngrams(words, order)
        matches.append(overlap(ngrams(pred, order), allowed))
    return [len(pred), nearest, *matches, *(max(0, len(pred) - order + 1) for order in orders)]


def _bleu(sums: Floats) -> Floats:
    """Compute BLEU from summed counts (resamples, 2 + 2 * WORDS)."""
    pred, true = sums[:, 0], sums[:, 1]
    matches, runs = sums[:, 2 : 2 + WORDS], sums[:, 2 + WORDS :]
    missing = matches == 0
    smoothed = np.where(missing, 0.5 ** np.cumsum(missing, axis=1), matches)  # (resamples, WORDS)
    defined = (runs > 0).all(axis=1) & ~missing.all(axis=1)
    logs = np.log(np.where(defined[:, None], divide(smoothed, runs), 1.0)).mean(axis=1)
    brevity = np.minimum(0.0, 1.0 - divide(true, pred))
    return np.where(defined, 100 * np.exp(logs + brevity), 0.0)


# --- chrF ---------------------------------------------------------------------------------------


def _character_counts(references: list[str], predicted: str) -> list[int]:
    """Count per order: predicted n-grams, those of the best reference, matches."""
    pred = "".join(predicted.split())
    rows = [_compare_characters("".join(text.split()), pred) for text in references]
    if len(rows) == 1:
        return rows[0]
    return rows[int(np.argmax(_chrf(np.array(rows, dtype=np.float64))))]


def _compare_characters(true: str, pred: str) -> list[int]:
    orders = range(1, CHARACTERS + 1)
    runs_true = [max(0, len(true) - order + 1) for order in orders]
    # Orders longer than the reference do not count.
    runs_said = [max(0, len(pred) - o + 1) if len(true) >= o else 0 for o in orders]
    matches = [overlap(ngrams(pred, order), ngrams(true, order)) for order in orders]
    return [*runs_said, *runs_true, *matches]


def _chrf(sums: Floats) -> Floats:
    """Compute chrF from summed counts (resamples, 3 * CHARACTERS)."""
    pred, true, matches = np.split(sums, 3, axis=1)
    both = (pred > 0) & (true > 0)  # orders for which neither side is too short
    orders = both.sum(axis=1)
    precision = divide(np.where(both, divide(matches, pred), 0.0).sum(axis=1), orders)
    recall = divide(np.where(both, divide(matches, true), 0.0).sum(axis=1), orders)
    return 100 * divide((1 + _RECALL) * precision * recall, _RECALL * precision + recall)
