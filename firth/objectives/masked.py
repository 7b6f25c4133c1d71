"""Masked language models: some tokens are hidden, and predicted from what stands on both sides.

BERT (Devlin et al. 2019, section 3.1) hides 15 % of the tokens: of those, 80 % become [MASK],
10 % another token, and 10 % stay as they are. Whole words (BERT's later release) and spans
(SpanBERT, Joshi et al. 2020) hide neighbours together. What is hidden is drawn anew whenever a
sequence is seen again, as in RoBERTa (Liu et al. 2019).
"""

from __future__ import annotations

import numpy as np

from firth.draws import Bools, Longs, choose, derive, uniform
from firth.errors import Misuse
from firth.objectives.batch import Batch, Packed, Prediction
from firth.text.tokenizer import Vocabulary

HIDE, LENGTH, GAP, FATE, OTHER = range(5)  # what is drawn

# SpanBERT: lengths from a geometric distribution, p = 0.2, of at most 10 words; the mean is 3.8.
SPAN_LENGTHS = 0.2 * 0.8 ** np.arange(10)
SPAN_LENGTHS /= SPAN_LENGTHS.sum()


def masked(
    packed: Packed,
    vocabulary: Vocabulary,
    *,
    rate: float = 0.15,
    whole_words: bool = False,
    kept: float = 0.1,
    random: float = 0.1,
) -> Batch:
    """Hide a share of the tokens of each sequence, at least one; special tokens never.

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> batch = masked(packed("[CLS] the quick brown fox jump ##s [SEP]"), VOCABULARY, rate=0.3)
    >>> words(batch.inputs), predicted(batch, "masked")
    (['[CLS] [MASK] quick [MASK] fox jump ##s [SEP]'], 'the brown')
    """
    hideable = ~vocabulary.special[packed.tokens]
    if whole_words and hideable.any():
        hidden = _choose_words(packed, hideable, word_starts(packed, vocabulary), rate)
    else:
        sizes = _per_sequence(packed, hideable)
        hidden = hideable.copy()
        hidden[hideable] = choose(packed.keys, HIDE, sizes, _budget(sizes, rate))
    tokens = _replaced(packed, vocabulary, hidden, packed.offsets, kept, random)
    positions = np.flatnonzero(hidden)
    prediction = Prediction(positions, packed.tokens[positions])
    return Batch(packed.with_tokens(tokens), packed.lengths, {"masked": prediction})


def masked_spans(packed: Packed, vocabulary: Vocabulary, *, rate: float = 0.15) -> Batch:
    """Hide spans of whole words, and predict them also from the two tokens beside each span.

    The second prediction is SpanBERT's boundary objective: a token from the tokens left and right
    of its span, and its place inside. All tokens of a span become masks, or none.

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> text = packed("[CLS] the quick brown fox jump ##s over a lazy dog [SEP]", seed=5)
    >>> batch = masked_spans(text, VOCABULARY, rate=0.3)
    >>> words(batch.inputs), predicted(batch, "boundary")
    (['[CLS] the quick brown fox [MASK] [MASK] [MASK] [MASK] lazy dog [SEP]'], 'jump ##s over a')
    >>> boundary = batch.predictions["boundary"]
    >>> boundary.left.tolist(), boundary.right.tolist(), boundary.place.tolist()
    ([4, 4, 4, 4], [9, 9, 9, 9], [1, 2, 3, 4])
    """
    if not 0 < rate <= 0.5:
        raise Misuse(f"Spans hide more than nothing and at most half of a text, not {rate}.")
    hideable = ~vocabulary.special[packed.tokens]
    starts = hideable & word_starts(packed, vocabulary)
    span = _choose_spans(packed, hideable, starts, rate)  # (N,) number of its span, or -1
    positions = np.flatnonzero(span >= 0)
    _, number, sizes = np.unique(span[positions], return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    begin, end = positions[(ends - sizes)[number]], positions[(ends - 1)[number]]
    offsets = packed.offsets.copy()
    offsets[positions] = offsets[begin]  # one fate for all tokens of a span
    tokens = _replaced(packed, vocabulary, span >= 0, offsets, 0.1, 0.1)
    targets = packed.tokens[positions]
    boundary = Prediction(positions, targets, begin - 1, end + 1, positions - begin + 1)
    predictions = {"masked": Prediction(positions, targets), "boundary": boundary}
    return Batch(packed.with_tokens(tokens), packed.lengths, predictions)


def word_starts(packed: Packed, vocabulary: Vocabulary) -> Bools:
    """Where words begin: by the token itself, by the end of the word before, or after a special."""
    before = np.roll(packed.tokens, 1)
    starts: Bools = vocabulary.begins[packed.tokens] | vocabulary.ends[before]
    starts |= vocabulary.special[before] | (packed.offsets == 0)
    return starts


def _per_sequence(packed: Packed, flags: Bools) -> Longs:
    """How many tokens of each sequence are flagged."""
    return np.bincount(packed.owners[flags], minlength=len(packed.keys))


def _budget(sizes: Longs, rate: float) -> Longs:
    wanted: Longs = np.rint(sizes * rate).astype(np.int64)
    return np.minimum(sizes, np.maximum(1, wanted))


def _choose_words(packed: Packed, hideable: Bools, starts: Bools, rate: float) -> Bools:
    """Hide words in a random order, while that brings a sequence nearer to its share of tokens."""
    places = np.flatnonzero(hideable)
    begins = starts[places]
    begins[:1] = True
    word = np.cumsum(begins) - 1  # of each hideable token
    owner = packed.owners[places[begins]]  # of each word
    size = np.bincount(word)
    draw = uniform(derive(packed.keys[owner], packed.offsets[places[begins]]), HIDE)
    order = np.argsort(owner + draw, kind="stable")
    ends = np.cumsum(size[order])
    sequence = owner[order]
    first = np.searchsorted(sequence, np.arange(len(packed.keys)))
    before = (ends - size[order]) - (ends - size[order])[np.minimum(first, len(order) - 1)][
        sequence
    ]
    wanted = _per_sequence(packed, hideable) * rate
    taken = (before + size[order] / 2 <= wanted[sequence]) | (before == 0)
    chosen = np.zeros(len(size), dtype=np.bool_)
    chosen[order] = taken
    hidden = hideable.copy()
    hidden[places] = chosen[word]
    return hidden


def _choose_spans(packed: Packed, hideable: Bools, starts: Bools, rate: float) -> Longs:
    """The span of each token, or -1: random lengths, set apart by random gaps between words."""
    words = _per_sequence(packed, starts)  # (S,)
    budget = _budget(words, rate)
    draws = np.arange(budget.max(initial=0))
    lengths = 1 + np.searchsorted(
        np.cumsum(SPAN_LENGTHS[:-1]), uniform(derive(packed.keys[:, None], draws), LENGTH)
    )  # (S, budget): more than enough spans of at least one word
    ends = np.minimum(np.cumsum(lengths, axis=1), budget[:, None])
    lengths = np.diff(ends, axis=1, prepend=0)
    spans = (lengths > 0).sum(axis=1)
    gaps = np.maximum(words - budget + 1, 0)
    chosen = choose(packed.keys, GAP, gaps, spans)
    sequence = np.repeat(np.arange(len(words)), gaps)[chosen]
    gap = (np.arange(len(chosen)) - np.repeat(np.cumsum(gaps) - gaps, gaps))[chosen]
    length = lengths[lengths > 0]
    begin = gap + (ends - lengths)[lengths > 0] + (np.cumsum(words) - words)[sequence]
    of_word = np.full(int(words.sum()), -1)
    inside = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    of_word[np.repeat(begin, length) + inside] = np.repeat(np.arange(len(begin)), length)
    span = np.full(len(packed.tokens), -1)
    places = np.flatnonzero(hideable)
    span[places] = of_word[np.cumsum(starts[places]) - 1]
    return span


def _replaced(
    packed: Packed,
    vocabulary: Vocabulary,
    hidden: Bools,
    offsets: Longs,
    kept: float,
    random: float,
) -> Longs:
    """The tokens with masks, a few other tokens, and a few of their own in the hidden places."""
    mask = vocabulary.id("mask")
    places = np.flatnonzero(hidden)
    keys = packed.keys[packed.owners[places]]
    fate = uniform(derive(keys, offsets[places]), FATE)
    ordinary = np.flatnonzero(~vocabulary.special)
    draw = uniform(derive(keys, packed.offsets[places]), OTHER)
    others = ordinary[(draw * len(ordinary)).astype(np.int64)]
    tokens = packed.tokens.copy()
    replaced = fate >= kept
    tokens[places[replaced]] = np.where(fate < kept + random, others, mask)[replaced]
    return tokens
