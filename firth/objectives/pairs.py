"""Pairs of texts: does the second follow the first, and are they in the right order?

BERT's next-sentence prediction (Devlin et al. 2019, section 3.1) and ALBERT's sentence order (Lan
et al. 2020, section 3.1). Both return sequences `[CLS] A [SEP] B [SEP]` with segments, in which
`masked` can hide tokens as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from firth.draws import Bools, Longs, derive, uniform
from firth.errors import Misuse
from firth.objectives.batch import Batch, Packed, Prediction
from firth.text.tokenizer import Vocabulary

SWAP, CUT = 30, 31  # what is drawn

Truncation = Literal["either", "end"]


def next_sentence(
    first: Packed,
    second: Packed,
    follows: Bools,
    vocabulary: Vocabulary,
    *,
    length: int,
    truncation: Truncation = "either",
) -> Batch:
    """Join pairs of which some follow each other in a document and some do not; 0 is "follows".

    >>> from firth.objectives.examples import VOCABULARY, packed, words
    >>> first, second = packed("the dog barked .", "a fox ."), packed("it jump ##s", "thank you")
    >>> batch = next_sentence(first, second, np.array([True, False]), VOCABULARY, length=9)
    >>> words(batch.inputs)
    ['[CLS] dog barked . [SEP] it jump ##s [SEP]', '[CLS] a fox . [SEP] thank you [SEP]']
    >>> batch.inputs.segments.tolist(), batch.predictions["next sentence"].targets.tolist()
    ([0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1], [0, 1])
    """
    pairs = _join(first, second, vocabulary, length, truncation)
    prediction = Prediction(pairs.starts[:-1], (~follows).astype(np.int64))
    return Batch(pairs, pairs.lengths, {"next sentence": prediction})


def sentence_order(
    first: Packed,
    second: Packed,
    vocabulary: Vocabulary,
    *,
    length: int,
    truncation: Truncation = "end",
) -> Batch:
    """Swap half of the pairs, all of which follow each other; 1 is "swapped".

    >>> from firth.objectives.examples import VOCABULARY, packed, words
    >>> first, second = packed("the dog barked .", "a fox ."), packed("it jump ##s", "thank you")
    >>> batch = sentence_order(first, second, VOCABULARY, length=12)
    >>> words(batch.inputs)
    ['[CLS] it jump ##s [SEP] the dog barked . [SEP]', '[CLS] a fox . [SEP] thank you [SEP]']
    >>> batch.predictions["sentence order"].targets.tolist()
    [1, 0]
    """
    swapped = uniform(first.keys, SWAP) < 0.5
    both = zip(first.rows(), second.rows(), swapped, strict=True)
    ordered = [(b, a) if swap else (a, b) for a, b, swap in both]
    front = Packed.join([a for a, _ in ordered], first.keys)
    back = Packed.join([b for _, b in ordered], second.keys)
    pairs = _join(front, back, vocabulary, length, truncation)
    prediction = Prediction(pairs.starts[:-1], swapped.astype(np.int64))
    return Batch(pairs, pairs.lengths, {"sentence order": prediction})


def _join(
    first: Packed, second: Packed, vocabulary: Vocabulary, length: int, truncation: Truncation
) -> Packed:
    """`[CLS] A [SEP] B [SEP]` of at most `length` tokens each."""
    room = length - 3
    if room < 2:
        raise Misuse(f"A pair and its three special tokens need a length of 5, not {length}.")
    fronts = np.minimum(first.lengths, np.maximum(room - second.lengths, (room + 1) // 2))
    backs = np.minimum(second.lengths, room - fronts)
    cls, sep = [vocabulary.id("cls", "bos")], [vocabulary.id("sep", "eos")]
    rows, segments = [], []
    second = replace(second, keys=derive(second.keys, 1))  # coins of its own
    texts = _cut(first, fronts, truncation), _cut(second, backs, truncation)
    for a, b in zip(*texts, strict=True):
        rows.append(np.concatenate((cls, a, sep, b, sep)))
        segments.append(np.repeat([0, 1], [len(a) + 2, len(b) + 1]))
    joined = Packed.join(rows, first.keys)
    return replace(joined, segments=np.concatenate(segments) if segments else joined.tokens)


def _cut(packed: Packed, sizes: Longs, truncation: Truncation) -> list[Longs]:
    """Texts without some tokens: of their ends, or each of either end as a coin falls (BERT)."""
    starts = packed.starts[:-1]
    if truncation == "either":
        excess = packed.lengths - sizes
        owners = np.repeat(np.arange(len(sizes)), excess)
        coins = (
            uniform(
                derive(
                    packed.keys[owners],
                    np.arange(len(owners)) - (np.cumsum(excess) - excess)[owners],
                ),
                CUT,
            )
            < 0.5
        )
        starts = starts + np.bincount(owners[coins], minlength=len(sizes))
    ends = (starts + sizes).tolist()
    return [packed.tokens[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
