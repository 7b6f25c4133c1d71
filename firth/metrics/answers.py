"""Answers to questions, judged as the official scripts of SQuAD do, in per cent.

A prediction is compared with every gold answer and keeps its best scores: exact, whether the two
are the same, and f1, how many words they share; in both, case, punctuation and articles do not
count (Rajpurkar et al. 2016). SQuAD 2.0 has questions without an answer: "" is right there, and f1
is all or nothing (Rajpurkar et al. 2018).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from firth.errors import MismatchError, Misuse
from firth.metrics.bootstrap import Bootstrap, Figure, check_pairs, means
from firth.metrics.ngrams import overlap

_VERSIONS = ("1.1", "2.0")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answers(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[str],
    *,
    version: str | None = None,
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Figure]:
    """Exact and f1 of predicted answers, given each question's list of gold answers.

    An empty list is a question without an answer. ``version`` is that of the official script, "1.1"
    or "2.0": the latter by default where there is such a question. It adds the two scores of the
    questions with and of those without an answer (has_answer_exact … no_answer_f1). The versions
    judge alike, but for gold answers of which nothing is left, such as "The".

    >>> figures = answers([["the Bell Labs", "Bell Labs"], []], ["Bell labs!", "Murray Hill"])
    >>> {name: figure.value for name, figure in figures.items() if "_" not in name}
    {'exact': 50.0, 'f1': 50.0}
    >>> figures["has_answer_f1"].value, figures["no_answer_f1"].value
    (100.0, 0.0)
    """
    check_pairs(gold, predicted)
    has_answer = np.array([len(texts) > 0 for texts in gold], dtype=np.bool_)
    if version is None:
        version = "1.1" if has_answer.all() else "2.0"
    if version not in _VERSIONS:
        raise Misuse(f"There is no version {version!r} of SQuAD; known are {', '.join(_VERSIONS)}.")
    if version == "1.1" and not has_answer.all():
        number = int(np.flatnonzero(~has_answer)[0]) + 1
        raise MismatchError(f"Question {number:,} has no gold answer, which is new in SQuAD 2.0.")
    pairs = [_best(texts, text, version) for texts, text in zip(gold, predicted, strict=True)]
    scores = 100 * np.array(pairs, dtype=np.float64).reshape(-1, 2)  # (questions, exact and f1)
    parts = {"": np.ones(len(scores), dtype=np.bool_)}
    if version == "2.0":
        parts |= {"has_answer_": has_answer, "no_answer_": ~has_answer}
    return {
        name: figure
        for part, chosen in parts.items()
        if chosen.any() or not part
        for name, figure in means(
            {f"{part}exact": scores[chosen, 0], f"{part}f1": scores[chosen, 1]}, bootstrap
        ).items()
    }


def normalise_answer(text: str) -> str:
    """What counts of an answer: lower case, no ASCII punctuation, no English articles.

    >>> normalise_answer("The  U.S. Senate, a chamber")
    'us senate chamber'
    """
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _best(gold: Sequence[str], predicted: str, version: str) -> tuple[float, float]:
    """The best exact score and the best f1 that any gold answer gives."""
    said, true = normalise_answer(predicted), [normalise_answer(text) for text in gold]
    if version == "2.0":
        true = [text for text in true if text] or [""]
        if not said or true == [""]:
            return float(said in true), float(said in true)
    return float(said in true), max(_f1(text.split(), said.split()) for text in true)


def _f1(true: list[str], said: list[str]) -> float:
    shared = overlap(Counter(true), Counter(said))
    return 2 * shared / (len(true) + len(said)) if shared else 0.0
