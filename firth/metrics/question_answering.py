"""Exact match and F1 of extractive question answering, as in SQuAD's official scripts, in percent.

A prediction is compared with every gold answer and keeps its best scores: exact match, and F1 of
shared words; both ignore case, punctuation and articles (Rajpurkar et al. 2016). SQuAD 2.0 has
unanswerable questions: there, "" is right, and F1 is 0 or 100 (Rajpurkar et al. 2018).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from firth.metrics.bootstrap import Bootstrap, Metric, check_pairs, means
from firth.metrics.ngrams import overlap

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def squad_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute exact match and F1 of predicted answers, given each question's gold answers.

    An empty list marks an unanswerable question. If there are any, the rules are those of SQuAD 2.0
    and both metrics are added for answerable and for unanswerable questions (has_answer_exact …
    no_answer_f1). Otherwise the versions differ only for gold answers that normalization empties,
    such as "The".

    >>> metrics = squad_metrics([["the Bell Labs", "Bell Labs"], []], ["Bell labs!", "Murray Hill"])
    >>> {name: metric.value for name, metric in metrics.items() if "_" not in name}
    {'exact': 50.0, 'f1': 50.0}
    >>> metrics["has_answer_f1"].value, metrics["no_answer_f1"].value
    (100.0, 0.0)
    """
    check_pairs(gold, predicted)
    has_answer = np.array([len(texts) > 0 for texts in gold], dtype=np.bool_)
    version_2 = not has_answer.all()
    pairs = [
        score_answer(texts, text, version_2) for texts, text in zip(gold, predicted, strict=True)
    ]
    scores = 100 * np.array(pairs, dtype=np.float64).reshape(-1, 2)  # (questions, exact and f1)
    parts = {"": np.ones(len(scores), dtype=np.bool_)}
    if version_2:
        parts |= {"has_answer_": has_answer, "no_answer_": ~has_answer}
    return {
        name: metric
        for part, chosen in parts.items()
        if chosen.any() or not part
        for name, metric in means(
            {f"{part}exact": scores[chosen, 0], f"{part}f1": scores[chosen, 1]},
            bootstrap,
            scale=100,
        ).items()
    }


def normalise_answer(text: str) -> str:
    """Normalize an answer: lower case, no ASCII punctuation, no English articles.

    >>> normalise_answer("The  U.S. Senate, a chamber")
    'us senate chamber'
    """
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def score_answer(gold: Sequence[str], predicted: str, version_2: bool) -> tuple[float, float]:
    """Compute the best exact match and the best F1 over all gold answers.

    >>> score_answer(["the Senate", "US Senate"], "Senate chamber", version_2=False)
    (0.0, 0.6666666666666666)
    """
    pred, true = normalise_answer(predicted), [normalise_answer(text) for text in gold]
    if version_2:
        true = [text for text in true if text] or [""]
        if not pred or true == [""]:
            return float(pred in true), float(pred in true)
    return float(pred in true), max(_f1(text.split(), pred.split()) for text in true)


def _f1(true: list[str], pred: list[str]) -> float:
    shared = overlap(Counter(true), Counter(pred))
    return 2 * shared / (len(true) + len(pred)) if shared else 0.0
