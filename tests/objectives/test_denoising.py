"""Span corruption and text infilling: published lengths, statistics and invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.data.packing import PackedSequences
from firth.objectives.denoising import infilling, raw_length, span_corruption
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import derive_keys
from tests.objectives.conftest import make_vocabulary


def test_568_tokens_give_inputs_of_512_and_targets_of_114(vocabulary: Vocabulary) -> None:
    """The lengths of T5's released data code for inputs of 512."""
    row = np.arange(568) % 800 + 5
    batch = span_corruption(PackedSequences.join([row], derive_keys(0, [0])), vocabulary)
    assert batch.target is not None
    assert (len(batch.inputs.tokens), len(batch.target.tokens)) == (512, 114)
    assert raw_length(512) == 568
    closed = span_corruption(
        PackedSequences.join([row], derive_keys(0, [0])), vocabulary, final_sentinel=True
    )
    assert closed.target is not None
    assert len(closed.target.tokens) == 115
    assert closed.predictions["denoising"].targets[-2:].tolist() == [999 - 28, 3]


def restored(inputs: np.ndarray, labels: np.ndarray, sentinels: np.ndarray) -> list[int]:
    """Put the spans back in place of their sentinels."""
    spans: dict[int, list[int]] = {}
    for token in labels[:-1]:
        if token in sentinels:
            spans[int(token)] = []
        else:
            spans[list(spans)[-1]].append(int(token))
    text: list[int] = []
    for token in inputs[:-1]:
        text += spans.get(int(token), [int(token)])
    return text


def test_spans_and_inputs_restore_the_text(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = span_corruption(bare_million, vocabulary)
    assert batch.target is not None
    labels = np.split(batch.predictions["denoising"].targets, batch.target.starts[1:-1])
    rows = zip(batch.inputs.rows(), labels, bare_million.rows(), strict=True)
    for i, (inputs, asked, original) in enumerate(rows):
        assert inputs[-1] == asked[-1] == 3  # both end with the end token
        if i < 300:
            assert restored(inputs, asked, vocabulary.sentinels) == original.tolist()
    # The decoder input is the targets shifted right by one, beginning with the pad token (T5).
    shifted = batch.target.rows()
    assert all(row[0] == 0 for row in shifted)
    np.testing.assert_array_equal(shifted[0][1:], labels[0][:-1])


def test_noise_density_and_mean_span_length(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = span_corruption(bare_million, vocabulary)
    labels = batch.predictions["denoising"].targets
    is_sentinel = np.isin(labels, vocabulary.sentinels)
    taken = len(labels) - is_sentinel.sum() - len(bare_million.keys)
    assert taken / len(bare_million.tokens) == pytest.approx(0.15, abs=0.002)
    assert taken / is_sentinel.sum() == pytest.approx(3.0, abs=0.1)
    sentinels_read = np.isin(batch.inputs.tokens, vocabulary.sentinels).sum()
    assert sentinels_read == is_sentinel.sum()


def test_texts_begin_with_kept_tokens_and_end_with_a_span(vocabulary: Vocabulary) -> None:
    """As in the data code of T5."""
    rows = PackedSequences.join([np.arange(5, 25)] * 2000, derive_keys(0, np.arange(2000)))
    batch = span_corruption(rows, vocabulary)
    for inputs in batch.inputs.rows():
        assert inputs[0] == 5
        assert inputs[-2] in vocabulary.sentinels


def test_infilling_replaces_each_span_by_one_mask(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = infilling(bare_million, vocabulary, shuffle=False)
    masks = (batch.inputs.tokens == 4).sum()
    hidden = len(bare_million.tokens) - (len(batch.inputs.tokens) - masks - 2 * len(batch.prefix))
    assert hidden / len(bare_million.tokens) == pytest.approx(0.3, abs=0.005)
    assert hidden / masks == pytest.approx(3.0, abs=0.15)  # Poisson, the last one cut short
    assert batch.target is not None
    labels = np.split(batch.predictions["denoising"].targets, batch.target.starts[1:-1])
    for asked, original in zip(labels[:500], bare_million.rows(), strict=False):
        assert asked.tolist() == [2, *original, 3]
    # The other tokens keep their order.
    for inputs, original in zip(batch.inputs.rows()[:200], bare_million.rows(), strict=False):
        left = iter(original.tolist())
        assert all(token in left for token in inputs[1:-1].tolist() if token != 4)


def test_span_lengths_are_poisson(vocabulary: Vocabulary) -> None:
    """One long text of different tokens shows the length of every span."""
    row = np.arange(5, 895)
    rows = PackedSequences.join([row] * 400, derive_keys(7, np.arange(400)))
    lengths: list[int] = []
    for inputs in infilling(rows, vocabulary, shuffle=False).inputs.rows():
        kept = np.concatenate(([4], inputs[1:-1], [895]))
        places = np.flatnonzero(kept == 4)[1:]
        for place in places[:-1]:  # next to another mask, the end of a span is unknown
            if kept[place - 1] != 4 and kept[place + 1] != 4:
                lengths.append(int(kept[place + 1] - kept[place - 1] - 1))
    shares = np.bincount(lengths, minlength=12)[:12] / len(lengths)
    expected = [np.exp(-3) * 3**k / np.prod(np.arange(1, k + 1)) for k in range(12)]
    np.testing.assert_allclose(shares, expected, atol=0.015)


def test_whole_sentences_are_shuffled(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    batch = infilling(bare_million, vocabulary, noise_density=0.0)
    moved = 0
    for inputs, original in zip(batch.inputs.rows()[:300], bare_million.rows(), strict=False):
        text, whole = inputs[1:-1].tolist(), original.tolist()
        assert sorted(text) == sorted(whole)
        sentences = [whole[i : i + 10] for i in range(0, len(whole), 10)]
        assert all(str(sentence)[1:-1] in str(text) for sentence in sentences)
        moved += text != whole
    assert moved > 250
    with pytest.raises(UsageError, match="sentence"):
        infilling(replace(bare_million, sentences=None), vocabulary)


def test_lengths_of_infilling_and_shortest_lengths(vocabulary: Vocabulary) -> None:
    for size in range(2, 45):
        rows = PackedSequences.join([np.arange(5, 5 + size)] * 300, derive_keys(0, np.arange(300)))
        assert infilling(rows, vocabulary, shuffle=False).inputs.lengths.max() <= size + 2
    with pytest.raises(UsageError, match="at least 3"):
        raw_length(2)
    with pytest.raises(UsageError, match="at least 4"):
        raw_length(3, final_sentinel=True)


@settings(max_examples=30, deadline=None)
@given(
    noise_density=st.sampled_from([0.0, 0.05, 0.15, 0.5, 0.9, 1.0]),
    mean_span_length=st.sampled_from([1.0, 3.0, 20.0]),
    final_sentinel=st.booleans(),
    length=st.integers(4, 64),
)
def test_raw_length_is_the_longest_text_that_fits(length: int, **options: Any) -> None:
    def longest(size: int) -> int:
        rows = PackedSequences.join([np.arange(5, 5 + size)], derive_keys(0, [0]))
        batch = span_corruption(rows, make_vocabulary(), **options)
        return int(max(batch.inputs.lengths.max(), batch.output.lengths.max()))

    raw = raw_length(length, **options)
    assert all(longest(size) <= length for size in range(2, raw + 1))
    assert longest(raw + 1) > length


def test_invalid_options_and_short_texts(
    bare_million: PackedSequences, vocabulary: Vocabulary
) -> None:
    few = replace(vocabulary, sentinels=vocabulary.sentinels[:3])
    with pytest.raises(UsageError, match=r"12 sentinel .* 3.* --sentinels 100"):
        span_corruption(bare_million, few)
    for options in ({"noise_density": -0.1}, {"noise_density": 1.1}, {"mean_span_length": 0.0}):
        for objective in (span_corruption, infilling):
            with pytest.raises(UsageError, match=r"noise_density .* mean_span_length"):
                objective(bare_million, vocabulary, **options)
    rows = PackedSequences.join([np.array([7]), np.array([8, 9])], derive_keys(0, np.arange(2)))
    batch = span_corruption(rows, vocabulary)
    assert batch.inputs.rows()[0].tolist() == [8, 999, 3]
    assert batch.predictions["denoising"].targets.tolist() == [999, 9, 3]
