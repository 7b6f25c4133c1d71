"""Named entities: tag schemes (IOB1, IOB2, BIOES, BILOU) and entity-level metrics.

A scheme marks each token with a letter and the type of its entity. Tags are read as conlleval does,
the script of the shared tasks, and seqeval: a token continues the entity before it when its letter
is I or E, that of the token before it B or I, and their types are equal; every other token that is
not O begins an entity, so every sequence is valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from firth.metrics.bootstrap import (
    Bootstrap,
    Metric,
    Weights,
    check_pairs,
    divide,
    estimate,
    tally,
    wilson,
)
from firth.metrics.classification import entries, f1_from_counts
from firth.utils.errors import InputError, MismatchError
from firth.utils.rng import Floats

Tags = Sequence[str]  # of one sentence

UNTYPED = "_"  # the type of an entity whose tags are letters alone, as seqeval names it


class Entity(NamedTuple):
    """An entity's type and its tokens, `tokens[begin:end]`."""

    type: str
    begin: int
    end: int


_SAME_LETTER = {"L": "E", "U": "S"}  # BILOU's names for BIOES's letters


# --- tags and entities --------------------------------------------------------------------------


@lru_cache(maxsize=1 << 16)
def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its prefix and entity type.

    >>> split_tag("B-work-of-art"), split_tag("O"), split_tag("I")
    (('B', 'work-of-art'), ('O', '_'), ('I', '_'))
    """
    letter, hyphen, type = tag.partition("-")
    if tag == "O" or (letter in set("BIESLU") and (type or not hyphen)):
        return letter, type or UNTYPED
    raise InputError(
        f"The tag {tag!r} is neither O nor a letter B, I, E, S, L or U with a type, such as B-PER."
    )


def read_entities(tags: Tags) -> list[Entity]:
    """Extract the entities of a sentence from tags of any scheme.

    >>> read_entities(["I-PER", "I-PER", "O", "B-LOC", "I-ORG"])
    [Entity(type='PER', begin=0, end=2), Entity(type='LOC', begin=3, end=4), \
Entity(type='ORG', begin=4, end=5)]
    """
    found: list[Entity] = []
    before = ("O", UNTYPED)
    for place, tag in enumerate(tags):
        now = letter, type = _letter_and_type(tag)
        if _continues(before, now):
            found[-1] = found[-1]._replace(end=place + 1)
        elif letter != "O":
            found.append(Entity(type, place, place + 1))
        before = now
    return found


def may_follow(before: str, tag: str) -> bool:
    """Tell whether a tag obeys BIO after another: I- and E- need the B- or I- of their type.

    A sentence begins as after O.

    >>> may_follow("B-PER", "I-PER"), may_follow("B-PER", "I-LOC"), may_follow("O", "I-PER")
    (True, False, False)
    """
    now = _letter_and_type(tag)
    return now[0] not in ("I", "E") or _continues(_letter_and_type(before), now)


def _letter_and_type(tag: str) -> tuple[str, str]:
    letter, type = split_tag(tag)
    return _SAME_LETTER.get(letter, letter), type


def _continues(before: tuple[str, str], now: tuple[str, str]) -> bool:
    return now[0] in ("I", "E") and before[0] in ("B", "I") and before[1] == now[1]


# --- metrics ------------------------------------------------------------------------------------


def entity_metrics(
    gold: Sequence[Tags], predicted: Sequence[Tags], bootstrap: Bootstrap = Bootstrap()
) -> dict[str, Metric]:
    """Compute precision, recall and f1 of entities; type and both boundaries must match.

    >>> gold = [["B-PER", "I-PER", "O"], ["O", "B-LOC"]]
    >>> metrics = entity_metrics(gold, [["B-PER", "I-PER", "O"], ["B-LOC", "I-LOC"]])
    >>> {name: metric.value for name, metric in metrics.items()}
    {'precision': 0.5, 'recall': 0.5, 'f1': 0.5}
    """
    pairs = _read_pairs(gold, predicted)
    counts = [(len(true & pred), len(pred), len(true)) for true, pred in pairs]
    rows = np.array(counts, dtype=np.float64).reshape(-1, 3)  # (sentences, 3)
    return estimate(lambda weights: _prf(*(weights @ rows).T), len(rows), bootstrap)


def entity_metrics_by_type(
    gold: Sequence[Tags], predicted: Sequence[Tags], bootstrap: Bootstrap = Bootstrap()
) -> dict[str, dict[str, Metric]]:
    """Compute precision, recall and f1 of each entity type, in alphabetical order.

    >>> table = entity_metrics_by_type([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "B-PER"]])
    >>> {type: {name: metric.value for name, metric in row.items()} for type, row in table.items()}
    {'LOC': {'precision': 0.0, 'recall': 0.0, 'f1': 0.0}, \
'PER': {'precision': 0.5, 'recall': 1.0, 'f1': 0.6666666666666666}}
    """
    pairs = _read_pairs(gold, predicted)
    types = sorted({entity.type for true, pred in pairs for entity in true | pred})
    number = {type: place for place, type in enumerate(types)}
    sides = [
        entries([[number[entity.type] for entity in found] for found in side])
        for side in (
            [true & pred for true, pred in pairs],
            [pred for _, pred in pairs],
            [true for true, _ in pairs],
        )
    ]
    sums = [tally(rows, groups, len(types)) for rows, groups in sides]

    def score(weights: Weights) -> dict[tuple[str, str], Floats]:
        table = _prf(*(total(weights) for total in sums))  # (resamples, types) each
        return {
            (type, name): values[:, number]
            for number, type in enumerate(types)
            for name, values in table.items()
        }

    width = max(len(types), *(len(rows) for rows, _ in sides))
    table: dict[str, dict[str, Metric]] = {type: {} for type in types}
    for (type, name), metric in estimate(score, len(pairs), bootstrap, width=width).items():
        table[type][name] = metric
    return table


def token_accuracy(
    gold: Sequence[Sequence[object]],
    predicted: Sequence[Sequence[object]],
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Metric]:
    """Compute the fraction of tokens with the right tag, as for POS tagging.

    If it is the same in every resample of sentences, as when all tags are right, the interval is
    Wilson's with as many examples as sentences: the least effective sample size, since tokens of a
    sentence depend on each other (Korn and Graubard 1998).

    >>> token_accuracy([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]])["accuracy"].value
    0.6666666666666666
    """
    _check_lengths(gold, predicted)
    pairs = zip(gold, predicted, strict=True)
    right = [sum(a == b for a, b in zip(true, pred, strict=True)) for true, pred in pairs]
    rows = np.array([right, [len(tags) for tags in gold]], dtype=np.float64).T
    rows = rows[rows[:, 1] > 0]  # (sentences, 2): sentences are resampled; empty ones do not count

    def score(weights: Weights) -> dict[str, Floats]:
        sums = weights @ rows
        return {"accuracy": sums[:, 0] / sums[:, 1]}

    found = estimate(score, len(rows), bootstrap)["accuracy"]
    if found.low is None:
        low, high = wilson(found.value, len(rows))
        found = Metric(value=found.value, low=low, high=high)
    return {"accuracy": found}


def detection_metrics(
    gold: Sequence[Sequence[bool]],
    predicted: Sequence[Sequence[bool]],
    bootstrap: Bootstrap = Bootstrap(),
) -> dict[str, Metric]:
    """Compute precision, recall and F1 of detected tokens; texts are resampled.

    >>> detection_metrics([[True, False], [True]], [[True, True], [False]])["f1"].value
    0.5
    """
    _check_lengths(gold, predicted)
    pairs = [(np.array(t, bool), np.array(p, bool)) for t, p in zip(gold, predicted, strict=True)]
    rows = np.array([[(t & p).sum(), p.sum(), t.sum()] for t, p in pairs], dtype=np.float64)
    return estimate(lambda weights: _prf(*(weights @ rows).T), len(rows), bootstrap)


def _read_pairs(
    gold: Sequence[Tags], predicted: Sequence[Tags]
) -> list[tuple[set[Entity], set[Entity]]]:
    _check_lengths(gold, predicted)
    return [
        (set(read_entities(true)), set(read_entities(pred)))
        for true, pred in zip(gold, predicted, strict=True)
    ]


def _prf(hits: Floats, pred: Floats, true: Floats) -> dict[str, Floats]:
    return {
        "precision": divide(hits, pred),
        "recall": divide(hits, true),
        "f1": f1_from_counts(hits, pred, true),
    }


def _check_lengths(gold: Sequence[Sequence[object]], predicted: Sequence[Sequence[object]]) -> None:
    check_pairs(gold, predicted)
    for number, (true, pred) in enumerate(zip(gold, predicted, strict=True), start=1):
        if len(true) != len(pred):
            raise MismatchError(
                f"Sentence {number:,} has {len(true)} gold tags but {len(pred)} predicted ones: "
                "each token needs one."
            )
