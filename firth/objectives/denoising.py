"""Denoising objectives for encoder-decoders: span corruption (T5) and text infilling (BART).

T5 (Raffel et al. 2020, section 3.1.4) replaces each span by a sentinel token and predicts the
spans. BART (Lewis et al. 2020, section 2.2) replaces each span by one mask token, shuffles the
sentences, and predicts the whole text.
"""

from __future__ import annotations

from math import exp, factorial

import numpy as np

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch, append_token, encoder_decoder_batch
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import Longs, choose_positions, derive_keys, uniform

START_ROLES = ("pad", "bos", "cls")  # of T5's decoder start token, the first that exists
NOISE, KEEP, LENGTH, GAP, SHUFFLE = range(20, 25)  # names of random draws


def span_corruption(
    packed: PackedSequences,
    vocabulary: Vocabulary,
    *,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
    final_sentinel: bool = False,
) -> Batch:
    """Replace spans by sentinels and predict the spans, as T5's released data code does.

    568 tokens give inputs of 512 and targets of 114. With `final_sentinel`, one more sentinel
    follows the last span of the targets. Sequences of a single token are left out.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> text = packed("thank you for invit ##ing me to your party")
    >>> batch = span_corruption(text, VOCABULARY, noise_density=0.35, mean_span_length=1.5)
    >>> words(batch.inputs)
    ['thank you for invit <extra_id_0> to your <extra_id_1> [SEP]']
    >>> predicted(batch, "denoising")
    '<extra_id_0> ##ing me <extra_id_1> party [SEP]'
    """
    packed = packed.select(packed.lengths >= 2)
    sizes = packed.lengths
    noise, spans = _noise_and_spans(sizes, noise_density, mean_span_length)
    _check_sentinels(vocabulary, int(spans.max(initial=0)) + final_sentinel)
    pieces = np.empty(2 * spans.sum(), dtype=np.int64)  # kept, removed, kept, removed, …
    pieces[0::2] = _segments(packed, KEEP, sizes - noise, spans)
    pieces[1::2] = _segments(packed, NOISE, noise, spans)
    removed = np.repeat(np.arange(len(pieces)) % 2 == 1, pieces)  # (N,)
    begins = np.cumsum(pieces)[0::2]  # start of each span in the stream
    sentinels = vocabulary.sentinels[np.arange(len(begins)) - np.repeat(_before(spans), spans)]
    in_front = np.cumsum(removed)[begins] - 1  # tokens removed before each span

    end = vocabulary.id("eos", "sep")
    inputs = np.insert(packed.tokens[~removed], begins - in_front, sentinels)
    inputs, input_sizes = append_token(inputs, sizes - noise + spans, end)
    labels = np.insert(packed.tokens[removed], in_front, sentinels)
    label_sizes = noise + spans
    if final_sentinel:
        labels, label_sizes = append_token(labels, label_sizes, vocabulary.sentinels[spans])
    labels, label_sizes = append_token(labels, label_sizes, end)
    corrupted = PackedSequences.of_sizes(inputs, input_sizes, packed.keys)
    return encoder_decoder_batch(
        corrupted, labels, label_sizes, start=vocabulary.id(*START_ROLES), name="denoising"
    )


def infilling(
    packed: PackedSequences,
    vocabulary: Vocabulary,
    *,
    noise_density: float = 0.3,
    mean_span_length: float = 3.0,
    shuffle: bool = True,
) -> Batch:
    """Replace spans by one mask each, shuffle the sentences, predict the original text (BART).

    Span lengths have a Poisson distribution; a span of length 0 inserts a mask.

    >>> from firth.objectives.toy_vocabulary import VOCABULARY, packed, predicted, words
    >>> batch = infilling(packed("the dog barked . a fox jump ##s over it ."), VOCABULARY)
    >>> words(batch.inputs)
    ['[CLS] a fox jump ##s over it . [MASK] . [SEP]']
    >>> predicted(batch, "denoising")
    '[CLS] the dog barked . a fox jump ##s over it . [SEP]'
    """
    _check_spans(noise_density, mean_span_length)
    text = _shuffled(packed) if shuffle else packed
    sizes = text.lengths
    budget = np.rint(sizes * noise_density).astype(np.int64)
    lengths, drawn = _poisson_spans(text, budget, mean_span_length, room=sizes - budget + 1)
    spans = drawn.sum(axis=1)
    gaps = sizes - budget + 1  # possible positions: before, between and after the other tokens
    chosen = choose_positions(text.keys, GAP, gaps, spans)
    gap = (np.arange(len(chosen)) - np.repeat(_before(gaps), gaps))[chosen]
    length = lengths[drawn]
    earlier = (np.cumsum(lengths * drawn, axis=1) - lengths * drawn)[drawn]
    begins = np.repeat(text.starts[:-1], spans) + gap + earlier

    change = np.zeros(len(text.tokens) + 1, dtype=np.int64)
    np.add.at(change, begins, length > 0)
    np.add.at(change, begins + length, -(length > 0).astype(np.int64))
    hidden = np.cumsum(change)[:-1] > 0  # (N,)
    seen_before = np.concatenate(([0], np.cumsum(~hidden)))
    inputs = np.insert(text.tokens[~hidden], seen_before[begins], vocabulary.id("mask"))
    input_sizes = sizes - (lengths * drawn).sum(axis=1) + spans

    first, last = vocabulary.id("bos", "cls"), vocabulary.id("eos", "sep")
    corrupted = PackedSequences.of_sizes(*_frame(inputs, input_sizes, first, last), packed.keys)
    labels, label_sizes = _frame(packed.tokens, packed.lengths, first, last)
    return encoder_decoder_batch(corrupted, labels, label_sizes, start=last, name="denoising")


def raw_length(
    length: int,
    *,
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
    final_sentinel: bool = False,
    concatenated: bool = False,
) -> int:
    """Return the largest text length whose inputs and targets have at most `length` tokens.

    Each of them, or both together if they are `concatenated`.

    >>> raw_length(512), raw_length(512, noise_density=0.05), raw_length(512, concatenated=True)
    (568, 528, 464)
    """
    least = (6 if concatenated else 3) + final_sentinel
    if length < least:
        raise UsageError(f"Span corruption needs a length of at least {least}, not {length}.")
    sizes = np.arange(2, 2 * length)  # inputs and targets together are longer than the text
    noise, spans = _noise_and_spans(sizes, noise_density, mean_span_length)
    inputs, targets = sizes - noise + spans + 1, noise + final_sentinel + spans + 1
    longest = inputs + targets if concatenated else np.maximum(inputs, targets)
    return int(sizes[np.argmax(longest > length)]) - 1


def _noise_and_spans(
    sizes: Longs, noise_density: float, mean_span_length: float
) -> tuple[Longs, Longs]:
    """Return the number of tokens to remove from texts of these sizes, and the number of spans."""
    _check_spans(noise_density, mean_span_length)
    noise = np.clip(np.rint(sizes * noise_density).astype(np.int64), 1, sizes - 1)
    most = np.minimum(noise, sizes - noise)
    return noise, np.clip(np.rint(noise / mean_span_length).astype(np.int64), 1, most)


def _check_spans(noise_density: float, mean_span_length: float) -> None:
    if not (0 <= noise_density <= 1 and mean_span_length > 0):
        raise UsageError(
            "noise_density must be from 0 to 1 and mean_span_length above 0, not "
            f"{noise_density} and {mean_span_length}."
        )


def _check_sentinels(vocabulary: Vocabulary, needed: int) -> None:
    if needed > len(vocabulary.sentinels):
        raise UsageError(
            f"Span corruption needs {needed} sentinel tokens at this length, but the tokenizer has "
            f"{len(vocabulary.sentinels)}; train one with `firth tokenizer train --sentinels "
            f"{max(needed, 100)}`."
        )


def _segments(packed: PackedSequences, purpose: int, items: Longs, segments: Longs) -> Longs:
    """Return random lengths of non-empty `segments` that sum to `items`, uniformly distributed."""
    cuts = choose_positions(packed.keys, purpose, items - 1, segments - 1)
    ends = np.insert(cuts, np.cumsum(items - 1), True)  # the last item ends a segment
    return np.diff(np.flatnonzero(ends), prepend=-1)


def _poisson_spans(
    packed: PackedSequences, budget: Longs, mean: float, room: Longs
) -> tuple[Longs, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Draw span lengths up to the budget; return them and which are used."""  # (S, K) both
    cumulative = np.cumsum([exp(-mean) * mean**k / factorial(k) for k in range(30)])
    columns = np.arange(budget.max(initial=0) + 1)
    lengths = np.searchsorted(
        cumulative, uniform(derive_keys(packed.keys[:, None], columns), LENGTH)
    )
    ends = np.minimum(np.cumsum(lengths, axis=1), budget[:, None])
    lengths = np.diff(ends, axis=1, prepend=0)
    drawn = (ends - lengths < budget[:, None]) & (columns < room[:, None])
    # Never more masks than removed tokens: the text must not grow.
    return lengths, drawn & (columns < ends)


def _shuffled(packed: PackedSequences) -> PackedSequences:
    """Shuffle the sentences of each sequence."""
    if packed.sentences is None:
        raise UsageError("Shuffling sentences needs sentence boundaries; prepare the text again.")
    owner = packed.owners[packed.sentences]
    inside = packed.offsets[packed.sentences]
    order = np.argsort(owner + uniform(derive_keys(packed.keys[owner], inside), SHUFFLE))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    sentence = np.repeat(rank, np.diff(packed.sentences, append=len(packed.tokens)))
    return packed.with_tokens(packed.tokens[np.argsort(sentence, kind="stable")])


def _frame(tokens: Longs, sizes: Longs, first: int, last: int) -> tuple[Longs, Longs]:
    return append_token(np.insert(tokens, _before(sizes), first), sizes + 1, last)


def _before(sizes: Longs) -> Longs:
    """Return the sum of all earlier sizes (an exclusive cumulative sum)."""
    return np.cumsum(sizes) - sizes
