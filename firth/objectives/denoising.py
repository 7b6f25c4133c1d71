"""Restoring a damaged text: what encoder-decoders learn from.

T5 (Raffel et al. 2020, section 3.1.4) takes spans out, puts a sentinel in the place of each, and
asks for the spans. BART (Lewis et al. 2020, section 2.2) puts one mask in the place of a span of
any length, shuffles the sentences, and asks for the whole text.
"""

from __future__ import annotations

from math import exp, factorial

import numpy as np

from firth.draws import Longs, choose, derive, uniform
from firth.errors import Misuse
from firth.objectives.batch import Batch, Packed, Prediction
from firth.text.tokenizer import Vocabulary

NOISE, KEEP, LENGTH, GAP, SHUFFLE = range(20, 25)  # what is drawn


def span_corruption(
    packed: Packed,
    vocabulary: Vocabulary,
    *,
    rate: float = 0.15,
    mean_length: float = 3.0,
    closing: bool = False,
) -> Batch:
    """Take spans out and ask for them, as T5's released data code does.

    568 tokens give inputs of 512 and targets of 114. With `closing`, one more sentinel stands
    behind the last span of the targets. A sequence of a single token is left out.

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> text = packed("thank you for invit ##ing me to your party")
    >>> batch = span_corruption(text, VOCABULARY, rate=0.35, mean_length=1.5)
    >>> words(batch.inputs)
    ['thank you for invit <extra_id_0> to your <extra_id_1> [SEP]']
    >>> predicted(batch, "denoising")
    '<extra_id_0> ##ing me <extra_id_1> party [SEP]'
    """
    packed = packed.select(packed.lengths >= 2)
    sizes = packed.lengths
    noise, spans = _taken(sizes, rate, mean_length)
    _check_sentinels(vocabulary, int(spans.max(initial=0)) + closing)
    pieces = np.empty(2 * spans.sum(), dtype=np.int64)  # kept, taken, kept, taken, …
    pieces[0::2] = _segments(packed, KEEP, sizes - noise, spans)
    pieces[1::2] = _segments(packed, NOISE, noise, spans)
    taken = np.repeat(np.arange(len(pieces)) % 2 == 1, pieces)  # (N,)
    begins = np.cumsum(pieces)[0::2]  # of the spans, in the stream
    sentinels = vocabulary.sentinels[np.arange(len(begins)) - np.repeat(_before(spans), spans)]
    in_front = np.cumsum(taken)[begins] - 1  # tokens taken before each span

    end = vocabulary.id("eos", "sep")
    inputs = np.insert(packed.tokens[~taken], begins - in_front, sentinels)
    inputs, input_sizes = _append(inputs, sizes - noise + spans, end)
    labels = np.insert(packed.tokens[taken], in_front, sentinels)
    label_sizes = noise + spans
    if closing:
        labels, label_sizes = _append(labels, label_sizes, vocabulary.sentinels[spans])
    labels, label_sizes = _append(labels, label_sizes, end)
    damaged = _stream(packed, inputs, input_sizes)
    return _restore(damaged, labels, label_sizes, start=vocabulary.id("pad", "bos", "cls"))


def infilling(
    packed: Packed,
    vocabulary: Vocabulary,
    *,
    rate: float = 0.3,
    mean_length: float = 3.0,
    shuffle: bool = True,
) -> Batch:
    """Hide spans behind one mask each, shuffle the sentences, ask for the text (BART).

    Lengths are drawn from a Poisson distribution; a span of no tokens is a mask too many.

    >>> from firth.objectives.examples import VOCABULARY, packed, predicted, words
    >>> batch = infilling(packed("the dog barked . a fox jump ##s over it ."), VOCABULARY)
    >>> words(batch.inputs)
    ['[CLS] a fox jump ##s over it . [MASK] . [SEP]']
    >>> predicted(batch, "denoising")
    '[CLS] the dog barked . a fox jump ##s over it . [SEP]'
    """
    _check_spans(rate, mean_length)
    text = _shuffled(packed) if shuffle else packed
    sizes = text.lengths
    budget = np.rint(sizes * rate).astype(np.int64)
    lengths, drawn = _poisson_spans(text, budget, mean_length, room=sizes - budget + 1)
    spans = drawn.sum(axis=1)
    gaps = sizes - budget + 1  # places for a span: before, between and behind the other tokens
    chosen = choose(text.keys, GAP, gaps, spans)
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
    damaged = _stream(packed, *_frame(inputs, input_sizes, first, last))
    labels, label_sizes = _frame(packed.tokens, packed.lengths, first, last)
    return _restore(damaged, labels, label_sizes, start=last)


def raw_length(
    length: int, *, rate: float = 0.15, mean_length: float = 3.0, closing: bool = False
) -> int:
    """How many tokens give inputs, and targets, of at most `length` with spans taken out of them.

    >>> raw_length(512), raw_length(512, rate=0.05)
    (568, 528)
    """
    if length < 3 + closing:
        raise Misuse(f"Span corruption needs a length of at least {3 + closing}, not {length}.")
    sizes = np.arange(2, 2 * length)  # both sides together have more tokens than the text
    noise, spans = _taken(sizes, rate, mean_length)
    longest = np.maximum(sizes - noise, noise + closing) + spans + 1
    return int(sizes[np.argmax(longest > length)]) - 1


def _taken(sizes: Longs, rate: float, mean_length: float) -> tuple[Longs, Longs]:
    """How many tokens are taken out of texts of these sizes, and in how many spans."""
    _check_spans(rate, mean_length)
    noise = np.clip(np.rint(sizes * rate).astype(np.int64), 1, sizes - 1)
    most = np.minimum(noise, sizes - noise)
    return noise, np.clip(np.rint(noise / mean_length).astype(np.int64), 1, most)


def _check_spans(rate: float, mean_length: float) -> None:
    if not (0 <= rate <= 1 and mean_length > 0):
        raise Misuse(
            f"Spans are a share of a text, from 0 to 1, and have a mean length above 0: not {rate} "
            f"and {mean_length}."
        )


def _check_sentinels(vocabulary: Vocabulary, needed: int) -> None:
    if needed > len(vocabulary.sentinels):
        raise Misuse(
            f"Span corruption needs {needed} sentinel tokens at this length, and the tokenizer has "
            f"{len(vocabulary.sentinels)}: train one with --sentinels {max(needed, 100)}."
        )


def _segments(packed: Packed, purpose: int, items: Longs, segments: Longs) -> Longs:
    """Cut so many items into so many segments of at least one, all ways equally likely."""
    cuts = choose(packed.keys, purpose, items - 1, segments - 1)
    ends = np.insert(cuts, np.cumsum(items - 1), True)  # the last item ends a segment
    return np.diff(np.flatnonzero(ends), prepend=-1)


def _poisson_spans(
    packed: Packed, budget: Longs, mean: float, room: Longs
) -> tuple[Longs, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Lengths of spans until the budget is spent, and which of them count."""  # (S, K) both
    known = np.cumsum([exp(-mean) * mean**k / factorial(k) for k in range(30)])
    columns = np.arange(budget.max(initial=0) + 1)
    lengths = np.searchsorted(known, uniform(derive(packed.keys[:, None], columns), LENGTH))
    ends = np.minimum(np.cumsum(lengths, axis=1), budget[:, None])
    lengths = np.diff(ends, axis=1, prepend=0)
    drawn = (ends - lengths < budget[:, None]) & (columns < room[:, None])
    # Never more masks than hidden tokens: the text must not grow.
    return lengths, drawn & (columns < ends)


def _shuffled(packed: Packed) -> Packed:
    """The sentences of each sequence in a random order."""
    if packed.sentences is None:
        raise Misuse("Shuffling sentences needs to know where they begin.")
    owner = packed.owners[packed.sentences]
    inside = packed.offsets[packed.sentences]
    order = np.argsort(owner + uniform(derive(packed.keys[owner], inside), SHUFFLE))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    sentence = np.repeat(rank, np.diff(packed.sentences, append=len(packed.tokens)))
    return packed.with_tokens(packed.tokens[np.argsort(sentence, kind="stable")])


def _restore(damaged: Packed, labels: Longs, sizes: Longs, start: int) -> Batch:
    """An encoder reads what is damaged; a decoder, one token behind, writes what is asked for."""
    target = _stream(damaged, labels, sizes)
    shifted = np.roll(labels, 1)
    shifted[target.starts[:-1]] = start
    prediction = Prediction(np.arange(len(labels)), labels)
    return Batch(damaged, damaged.lengths, {"denoising": prediction}, target.with_tokens(shifted))


def _stream(packed: Packed, tokens: Longs, sizes: Longs) -> Packed:
    return Packed(tokens, np.concatenate(([0], np.cumsum(sizes))), packed.keys)


def _append(tokens: Longs, sizes: Longs, token: Longs | int) -> tuple[Longs, Longs]:
    return np.insert(tokens, np.cumsum(sizes), token), sizes + 1


def _frame(tokens: Longs, sizes: Longs, first: int, last: int) -> tuple[Longs, Longs]:
    return _append(np.insert(tokens, _before(sizes), first), sizes + 1, last)


def _before(sizes: Longs) -> Longs:
    """How much all earlier groups hold together."""
    return np.cumsum(sizes) - sizes
