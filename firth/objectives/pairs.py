"""Sentence-pair objectives: next-sentence prediction and sentence-order prediction.

BERT's next-sentence prediction (Devlin et al. 2019, section 3.1) and ALBERT's sentence order (Lan
et al. 2020, section 3.1). Both return sequences `[CLS] A [SEP] B [SEP]` with segment ids, to which
`masked` can be applied as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import Bools, Longs, derive_keys, uniform

SWAP, TRUNCATE = 30, 31  # names of random draws


def next_sentence(
    first: PackedSequences,
    second: PackedSequences,
    follows: Bools,
    vocabulary: Vocabulary,
    *,
    length: int,
) -> Batch:
    """Join pairs of texts and label whether the second follows the first: 0 if so, 1 if not.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, words
    >>> first, second = packed("the dog barked .", "a fox ."), packed("it jump ##s", "thank you")
    >>> batch = next_sentence(first, second, np.array([True, False]), VOCABULARY, length=9)
    >>> words(batch.inputs)
    ['[CLS] dog barked . [SEP] it jump ##s [SEP]', '[CLS] a fox . [SEP] thank you [SEP]']
    >>> batch.inputs.segments.tolist(), batch.predictions["next sentence"].targets.tolist()
    ([0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1], [0, 1])
    """
    pairs = _join(first, second, vocabulary, length, random_ends=True)
    prediction = PredictionTargets(pairs.starts[:-1], (~follows).astype(np.int64))
    return Batch(pairs, pairs.lengths, {"next sentence": prediction})


def sentence_order(
    first: PackedSequences, second: PackedSequences, vocabulary: Vocabulary, *, length: int
) -> Batch:
    """Swap half of the pairs of consecutive texts; the label is 1 for swapped pairs.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, words
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
    front = PackedSequences.join([a for a, _ in ordered], first.keys)
    back = PackedSequences.join([b for _, b in ordered], second.keys)
    pairs = _join(front, back, vocabulary, length, random_ends=False)
    prediction = PredictionTargets(pairs.starts[:-1], swapped.astype(np.int64))
    return Batch(pairs, pairs.lengths, {"sentence order": prediction})


def _join(
    first: PackedSequences,
    second: PackedSequences,
    vocabulary: Vocabulary,
    length: int,
    random_ends: bool,
) -> PackedSequences:
    """Build `[CLS] A [SEP] B [SEP]`, truncated to `length` tokens."""
    room = length - 3
    if room < 2:
        raise UsageError(
            f"A pair with its three special tokens needs a length of at least 5, not {length}."
        )
    fronts = np.minimum(first.lengths, np.maximum(room - second.lengths, (room + 1) // 2))
    backs = np.minimum(second.lengths, room - fronts)
    cls, sep = [vocabulary.id("cls", "bos")], [vocabulary.id("sep", "eos")]
    rows, segments = [], []
    second = replace(second, keys=derive_keys(second.keys, 1))  # random draws of its own
    texts = _truncate(first, fronts, random_ends), _truncate(second, backs, random_ends)
    for a, b in zip(*texts, strict=True):
        rows.append(np.concatenate((cls, a, sep, b, sep)))
        segments.append(np.repeat([0, 1], [len(a) + 2, len(b) + 1]))
    joined = PackedSequences.join(rows, first.keys)
    return replace(joined, segments=np.concatenate(segments) if segments else joined.tokens)


def _truncate(packed: PackedSequences, sizes: Longs, random_ends: bool) -> list[Longs]:
    """Truncate texts to `sizes`: at the end, or each token at a random end (BERT)."""
    starts = packed.starts[:-1]
    if random_ends:
        excess = packed.lengths - sizes
        owners = np.repeat(np.arange(len(sizes)), excess)
        number = np.arange(len(owners)) - (np.cumsum(excess) - excess)[owners]
        draws = uniform(derive_keys(packed.keys[owners], number), TRUNCATE)
        starts = starts + np.bincount(owners[draws < 0.5], minlength=len(sizes))
    ends = (starts + sizes).tolist()
    return [packed.tokens[a:b] for a, b in zip(starts.tolist(), ends, strict=True)]
