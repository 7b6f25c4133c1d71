"""Masked language modelling: predict masked tokens from the context on both sides.

BERT (Devlin et al. 2019, section 3.1) selects 15 % of the tokens: of those, 80 % become [MASK],
10 % a random token, and 10 % stay unchanged. Whole-word masking (BERT's later release) and span
masking (SpanBERT, Joshi et al. 2020) mask neighbouring tokens together. Masking is dynamic, as in
RoBERTa (Liu et al. 2019): new positions are drawn whenever a sequence is seen again, unless its
keys and counters are those of static draws (`Sampler.with_static_draws`).

`firth/objectives/reference.py` has the same masking in plain Python.
"""

from __future__ import annotations

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, PredictionTargets
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import Bools, Longs, choose_positions, derive_keys, uniform

SELECT, LENGTH, GAP, REPLACEMENT, RANDOM_TOKEN = range(5)  # names of random draws

# SpanBERT: span lengths in words, geometric with p = 0.2, truncated at 10; the mean is 3.8.
SPAN_LENGTHS = 0.2 * 0.8 ** np.arange(10)
SPAN_LENGTHS /= SPAN_LENGTHS.sum()


def masked(
    packed: PackedSequences,
    vocabulary: Vocabulary,
    *,
    mask_prob: float = 0.15,
    whole_words: bool = False,
    keep_prob: float = 0.1,
    random_prob: float = 0.1,
) -> Batch:
    """Mask a fraction of the tokens of each sequence, at least one; never special tokens.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("[CLS] the quick brown fox jump ##s [SEP]")
    >>> batch = masked(text, VOCABULARY, mask_prob=0.3)
    >>> words(batch.inputs), predicted(batch, "masked")
    (['[CLS] [MASK] quick [MASK] fox jump ##s [SEP]'], 'the brown')

    Of the selected tokens, `keep_prob` stay, `random_prob` become random, and the others [MASK]:

    >>> batch = masked(text, VOCABULARY, mask_prob=0.3, keep_prob=0.0, random_prob=1.0)
    >>> words(batch.inputs), predicted(batch, "masked")
    (['[CLS] a quick jump fox jump ##s [SEP]'], 'the brown')
    """
    if min(keep_prob, random_prob) < 0 or keep_prob + random_prob > 1 + 1e-9:
        raise UsageError(
            "keep_prob and random_prob are fractions whose sum is at most 1, not "
            f"{keep_prob} and {random_prob}."
        )
    maskable = ~vocabulary.special[packed.tokens]
    if whole_words and maskable.any():
        hidden = _choose_words(packed, maskable, word_starts(packed, vocabulary), mask_prob)
    else:
        sizes = _per_sequence(packed, maskable)
        hidden = maskable.copy()
        counters = None if packed.first_counters is None else packed.counters[maskable]
        budget = _budget(sizes, mask_prob)
        hidden[maskable] = choose_positions(packed.keys, SELECT, sizes, budget, counters)
    tokens = _replaced(packed, vocabulary, hidden, packed.counters, keep_prob, random_prob)
    positions = np.flatnonzero(hidden)
    prediction = PredictionTargets(positions, packed.tokens[positions])
    return Batch(packed.with_tokens(tokens), packed.lengths, {"masked": prediction})


def masked_spans(
    packed: PackedSequences, vocabulary: Vocabulary, *, mask_prob: float = 0.15
) -> Batch:
    """Mask spans of whole words, and predict them also from the two tokens around each span.

    The second prediction is SpanBERT's span boundary objective: it predicts a token from the tokens
    before and after its span and its position in the span. All tokens of a span are replaced by
    [MASK], by random tokens, or kept.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("[CLS] the quick brown fox jump ##s over a lazy dog [SEP]", seed=5)
    >>> batch = masked_spans(text, VOCABULARY, mask_prob=0.3)
    >>> words(batch.inputs), predicted(batch, "boundary")
    (['[CLS] the quick brown fox [MASK] [MASK] [MASK] [MASK] lazy dog [SEP]'], 'jump ##s over a')
    >>> boundary = batch.predictions["boundary"]
    >>> boundary.left.tolist(), boundary.right.tolist(), boundary.position_in_span.tolist()
    ([4, 4, 4, 4], [9, 9, 9, 9], [1, 2, 3, 4])
    """
    if not 0 < mask_prob <= 0.5:
        raise UsageError(
            f"mask_prob must be above 0 and at most 0.5 for span masking, not {mask_prob}."
        )
    maskable = ~vocabulary.special[packed.tokens]
    starts = maskable & word_starts(packed, vocabulary)
    span = _choose_spans(packed, maskable, starts, mask_prob)  # (N,) index of its span, or -1
    positions = np.flatnonzero(span >= 0)
    _, number, sizes = np.unique(span[positions], return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    begin, end = positions[(ends - sizes)[number]], positions[(ends - 1)[number]]
    offsets = packed.offsets.copy()
    offsets[positions] = offsets[begin]  # one draw for all tokens of a span
    tokens = _replaced(packed, vocabulary, span >= 0, offsets, 0.1, 0.1)
    targets = packed.tokens[positions]
    boundary = PredictionTargets(positions, targets, begin - 1, end + 1, positions - begin + 1)
    predictions = {"masked": PredictionTargets(positions, targets), "boundary": boundary}
    return Batch(packed.with_tokens(tokens), packed.lengths, predictions)


def word_starts(packed: PackedSequences, vocabulary: Vocabulary) -> Bools:
    """Mark the tokens that begin a word, including those after a word-final or a special token."""
    before = np.roll(packed.tokens, 1)
    starts: Bools = vocabulary.begins[packed.tokens] | vocabulary.ends[before]
    starts |= vocabulary.special[before] | (packed.offsets == 0)
    return starts


def _per_sequence(packed: PackedSequences, flags: Bools) -> Longs:
    """Count the flagged tokens of each sequence."""
    return np.bincount(packed.owners[flags], minlength=len(packed.keys))


def _budget(sizes: Longs, mask_prob: float) -> Longs:
    """Return the number of tokens (or words) to mask in sequences of these sizes, at least 1."""
    wanted: Longs = np.rint(sizes * mask_prob).astype(np.int64)
    return np.minimum(sizes, np.maximum(1, wanted))


def _choose_words(
    packed: PackedSequences, maskable: Bools, starts: Bools, mask_prob: float
) -> Bools:
    """Select words in random order until a sequence is as near as possible to its token budget."""
    places = np.flatnonzero(maskable)
    begins = starts[places]
    begins[:1] = True
    word = np.cumsum(begins) - 1  # of each maskable token
    owner = packed.owners[places[begins]]  # of each word
    size = np.bincount(word)
    draw = uniform(derive_keys(packed.keys[owner], packed.counters[places[begins]]), SELECT)
    order = np.argsort(owner + draw, kind="stable")
    ends = np.cumsum(size[order])
    sequence = owner[order]
    first = np.searchsorted(sequence, np.arange(len(packed.keys)))
    before = (ends - size[order]) - (ends - size[order])[np.minimum(first, len(order) - 1)][
        sequence
    ]
    wanted = _per_sequence(packed, maskable) * mask_prob
    taken = (before + size[order] / 2 <= wanted[sequence]) | (before == 0)
    chosen = np.zeros(len(size), dtype=np.bool_)
    chosen[order] = taken
    hidden = maskable.copy()
    hidden[places] = chosen[word]
    return hidden


def _choose_spans(
    packed: PackedSequences, maskable: Bools, starts: Bools, mask_prob: float
) -> Longs:
    """Return the span index of each token, or -1: spans of random length at random positions."""
    words = _per_sequence(packed, starts)  # (S,)
    budget = _budget(words, mask_prob)
    draws = np.arange(budget.max(initial=0))
    lengths = 1 + np.searchsorted(
        np.cumsum(SPAN_LENGTHS[:-1]), uniform(derive_keys(packed.keys[:, None], draws), LENGTH)
    )  # (S, budget): more than enough spans of at least one word
    ends = np.minimum(np.cumsum(lengths, axis=1), budget[:, None])
    lengths = np.diff(ends, axis=1, prepend=0)
    spans = (lengths > 0).sum(axis=1)
    gaps = np.maximum(words - budget + 1, 0)
    chosen = choose_positions(packed.keys, GAP, gaps, spans)
    sequence = np.repeat(np.arange(len(words)), gaps)[chosen]
    gap = (np.arange(len(chosen)) - np.repeat(np.cumsum(gaps) - gaps, gaps))[chosen]
    length = lengths[lengths > 0]
    begin = gap + (ends - lengths)[lengths > 0] + (np.cumsum(words) - words)[sequence]
    of_word = np.full(int(words.sum()), -1)
    inside = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    of_word[np.repeat(begin, length) + inside] = np.repeat(np.arange(len(begin)), length)
    span = np.full(len(packed.tokens), -1)
    places = np.flatnonzero(maskable)
    span[places] = of_word[np.cumsum(starts[places]) - 1]
    return span


def _replaced(
    packed: PackedSequences,
    vocabulary: Vocabulary,
    hidden: Bools,
    offsets: Longs,
    keep_prob: float,
    random_prob: float,
) -> Longs:
    """Replace selected tokens by [MASK] or a random token, or keep them."""
    mask = vocabulary.id("mask")
    places = np.flatnonzero(hidden)
    keys = packed.keys[packed.owners[places]]
    draw = uniform(derive_keys(keys, offsets[places]), REPLACEMENT)
    ordinary = np.flatnonzero(~vocabulary.special)
    choice = uniform(derive_keys(keys, packed.counters[places]), RANDOM_TOKEN)
    random_tokens = ordinary[(choice * len(ordinary)).astype(np.int64)]
    tokens = packed.tokens.copy()
    replaced = draw >= keep_prob
    replacement = np.where(draw < keep_prob + random_prob, random_tokens, mask)
    tokens[places[replaced]] = replacement[replaced]
    return tokens
