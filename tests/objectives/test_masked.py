"""Masked language modelling: invariants and statistics over a million tokens."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from firth.data.packing import PackedSequences
from firth.objectives.batch import Batch
from firth.objectives.masked import masked, masked_spans, word_starts
from firth.objectives.reference import mask_tokens
from firth.tokenizers.tokenizer import Vocabulary
from firth.utils.errors import UsageError
from firth.utils.rng import derive_keys


def check_recoverable(batch: Batch, original: PackedSequences, vocabulary: Vocabulary) -> None:
    """Check that inserting the targets gives the original, and that no special token is masked."""
    prediction = batch.predictions["masked"]
    restored = batch.inputs.tokens.copy()
    restored[prediction.positions] = prediction.targets
    np.testing.assert_array_equal(restored, original.tokens)
    assert not vocabulary.special[prediction.targets].any()
    assert (batch.prefix == original.lengths).all()


@pytest.mark.parametrize("kind", ["tokens", "words", "spans"])
def test_masking_statistics_over_a_million_tokens(
    million: PackedSequences, vocabulary: Vocabulary, kind: str
) -> None:
    if kind == "spans":
        batch = masked_spans(million, vocabulary)
    else:
        batch = masked(million, vocabulary, whole_words=kind == "words")
    check_recoverable(batch, million, vocabulary)
    positions = batch.predictions["masked"].positions
    ordinary = (~vocabulary.special[million.tokens]).sum()
    assert ordinary > 950_000
    assert len(positions) / ordinary == pytest.approx(0.15, abs=0.002)
    now, before = batch.inputs.tokens[positions], million.tokens[positions]
    # Standard deviations are below 0.001 (below 0.003 for spans, whose tokens share one draw).
    tolerance = 0.01 if kind == "spans" else 0.004
    assert (now == 4).mean() == pytest.approx(0.8, abs=tolerance)
    assert (now == before).mean() == pytest.approx(0.1, abs=tolerance)
    changed = now[(now != 4) & (now != before)]
    assert len(changed) / len(now) == pytest.approx(0.1, abs=tolerance)
    counts = np.bincount(changed, minlength=1000)[5:900]
    assert counts.min() > 0  # every ordinary token occurs as a replacement
    assert counts.sum() == len(changed)  # and no special token
    assert counts.max() < 2.5 * counts.mean()


@pytest.mark.parametrize(("keep_prob", "random_prob"), [(0.1, 0.1), (0.0, 0.0), (0.2, 0.0)])
def test_masking_equals_the_plain_reference(
    million: PackedSequences, vocabulary: Vocabulary, keep_prob: float, random_prob: float
) -> None:
    """The same number of targets in every sequence, the same invariants, the same statistics."""
    given = {"keep_prob": keep_prob, "random_prob": random_prob}
    rng, fractions = Random(0), np.zeros((2, 3))
    rows = [*million.between(0, 1000).rows(), *map(np.array, ([2, 3], [2, 7, 3], [9]))]
    stream = PackedSequences.join(rows, derive_keys(0, np.arange(len(rows))))
    batch = masked(stream, vocabulary, **given)
    found = batch.predictions["masked"]
    special, masked_rows = vocabulary.special.tolist(), batch.inputs.rows()
    for i, row in enumerate(rows):
        inputs, targets = mask_tokens(row.tolist(), special, 4, 0.15, rng, **given)
        here = stream.owners[found.positions] == i
        pairs = zip(stream.offsets[found.positions[here]], found.targets[here], strict=True)
        vectorized = {int(position): int(target) for position, target in pairs}
        assert len(targets) == len(vectorized)
        both = (inputs, targets), (masked_rows[i].tolist(), vectorized)
        for counts, (now, wanted) in zip(fractions, both, strict=True):
            assert [wanted.get(k, token) for k, token in enumerate(now)] == row.tolist()
            assert not any(special[token] for token in wanted.values())
            for k, target in wanted.items():
                assert now[k] == 4 or not special[now[k]]
                counts += [now[k] == 4, now[k] == target, now[k] not in (4, target)]
    fractions /= fractions.sum(axis=1, keepdims=True)
    expected = [1 - keep_prob - random_prob, keep_prob, random_prob]
    np.testing.assert_allclose(fractions, [expected] * 2, atol=0.015)  # 5 standard deviations


def test_every_place_is_hidden_equally_often(vocabulary: Vocabulary) -> None:
    tokens = np.concatenate(([2], np.arange(5, 25), [3]))
    rows = PackedSequences.join([tokens] * 20_000, derive_keys(3, np.arange(20_000)))
    batch = masked(rows, vocabulary)
    shares = np.bincount(rows.offsets[batch.predictions["masked"].positions], minlength=22) / 20_000
    assert shares[0] == shares[21] == 0
    np.testing.assert_allclose(shares[1:21], 0.15, atol=0.012)  # 5 standard deviations


def test_sequences_are_hidden_anew_each_time(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    again = PackedSequences(million.tokens, million.starts, derive_keys(million.keys, 1))
    first = masked(million, vocabulary).predictions["masked"].positions
    second = masked(again, vocabulary).predictions["masked"].positions
    common = len(np.intersect1d(first, second)) / len(first)
    assert common == pytest.approx(0.15, abs=0.01)
    same = masked(million, vocabulary).predictions["masked"].positions
    np.testing.assert_array_equal(first, same)


def test_what_is_hidden_does_not_depend_on_the_packing(vocabulary: Vocabulary) -> None:
    rows = [np.concatenate(([2], np.arange(5, 60) + i, [3])) for i in range(10)]
    keys = derive_keys(0, np.arange(10))
    together = masked(PackedSequences.join(rows, keys), vocabulary).inputs.rows()
    for i, row in enumerate(rows):
        alone = masked(PackedSequences.join([row], keys[i : i + 1]), vocabulary).inputs.tokens
        np.testing.assert_array_equal(alone, together[i])


def test_whole_words_are_masked(million: PackedSequences, vocabulary: Vocabulary) -> None:
    batch = masked(million, vocabulary, whole_words=True)
    hidden = np.zeros(len(million.tokens), dtype=bool)
    hidden[batch.predictions["masked"].positions] = True
    goes_on = ~word_starts(million, vocabulary) & ~vocabulary.special[million.tokens]
    places = np.flatnonzero(goes_on)
    np.testing.assert_array_equal(hidden[places], hidden[places - 1])


def test_span_lengths_are_those_of_the_paper(
    million: PackedSequences, vocabulary: Vocabulary
) -> None:
    """Joshi et al. 2020, section 3.1: geometric with p = 0.2, at most 10 words, 3.8 on average."""
    batch = masked_spans(million, vocabulary)
    boundary = batch.predictions["boundary"]
    assert boundary.left is not None
    assert boundary.right is not None
    assert boundary.position_in_span is not None
    starts = word_starts(million, vocabulary)
    begins = np.flatnonzero(boundary.position_in_span == 1)
    words_in = np.add.reduceat(starts[boundary.positions].astype(int), begins)
    assert words_in.max() == 10
    # The budget of a sequence cuts its last span short; long sequences show the distribution.
    long = million.lengths[million.owners[boundary.positions[begins]]] > 200
    last = np.append(np.diff(million.owners[boundary.positions[begins]]) > 0, True)
    shares = np.bincount(words_in[long & ~last], minlength=11)[1:] / (long & ~last).sum()
    expected = 0.2 * 0.8 ** np.arange(10)
    # Spans that end before the budget are a little shorter than all that were drawn.
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.05)
    assert starts[boundary.positions[begins]].all()
    # Neither neighbour of a span is hidden, and places count up from 1.
    hidden = np.zeros(len(million.tokens), dtype=bool)
    hidden[boundary.positions] = True
    assert not hidden[boundary.left].any()
    assert not hidden[boundary.right].any()
    np.testing.assert_array_equal(boundary.positions - boundary.left, boundary.position_in_span)


def test_mean_span_length_is_that_of_the_paper() -> None:
    from firth.objectives.masked import SPAN_LENGTHS

    assert SPAN_LENGTHS @ np.arange(1, 11) == pytest.approx(3.8, abs=0.01)


def test_short_sequences_have_at_least_one_masked_token(vocabulary: Vocabulary) -> None:
    rows = [np.array([2, 7, 3]), np.array([2, 3]), np.array([9])]
    keys = derive_keys(0, np.arange(3))
    for objective in (masked, masked_spans):
        batch = objective(PackedSequences.join(rows, keys), vocabulary)
        assert batch.predictions["masked"].targets.tolist() == [7, 9]


def test_text_of_special_tokens_only(vocabulary: Vocabulary) -> None:
    rows = PackedSequences.join([np.array([2, 1, 1, 3])], derive_keys(0, np.arange(1)))
    whole = masked(rows, vocabulary, whole_words=True)
    for batch in (masked(rows, vocabulary), whole, masked_spans(rows, vocabulary)):
        assert len(batch.predictions["masked"].targets) == 0
        np.testing.assert_array_equal(batch.inputs.tokens, rows.tokens)


def test_invalid_vocabulary_and_mask_prob(million: PackedSequences, vocabulary: Vocabulary) -> None:
    from dataclasses import replace

    without = replace(vocabulary, ids={"eos": 3})
    with pytest.raises(UsageError, match="mask token"):
        masked(million, without)
    with pytest.raises(UsageError, match="random_prob"):
        masked(million, vocabulary, keep_prob=0.5, random_prob=0.6)
    with pytest.raises(UsageError, match="mask_prob"):
        masked_spans(million, vocabulary, mask_prob=0.8)
