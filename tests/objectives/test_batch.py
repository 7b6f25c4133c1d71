"""One description, three shapes: stream, padded rows, buckets; and who may see whom."""

from __future__ import annotations

import numpy as np
import pytest

from firth.objectives.batch import Batch, Packed, buckets, pad
from firth.objectives.causal import causal
from firth.objectives.examples import packed


def test_padded_rows_hold_what_the_stream_holds(million: Packed) -> None:
    rows = np.array([5, 0, 77, 3])
    padded = pad(million, rows, filler=0)
    assert padded.tokens.shape == (4, million.lengths[rows].max())
    for row, tokens, length in zip(rows, padded.tokens, padded.lengths, strict=True):
        np.testing.assert_array_equal(tokens[:length], million.rows()[row])
        assert not tokens[length:].any()
    flat = np.concatenate([million.rows()[row] for row in rows])
    np.testing.assert_array_equal(padded.tokens.reshape(-1)[padded.positions], flat)


def test_buckets_hold_every_sequence_and_little_padding(million: Packed) -> None:
    groups = buckets(million.lengths, most=8192)
    np.testing.assert_array_equal(np.sort(np.concatenate(groups)), np.arange(8000))
    places = [len(group) * million.lengths[group].max() for group in groups]
    assert max(places) <= 8192
    waste = 1 - million.lengths.sum() / sum(places)
    padded_as_they_come = 1 - million.lengths.sum() / (8000 * million.lengths.max())
    assert waste < 0.02 < 0.4 < padded_as_they_come


def test_a_sequence_larger_than_a_bucket_stands_alone() -> None:
    assert [g.tolist() for g in buckets(np.array([4, 100, 5]), most=20)] == [[0, 2], [1]]


@pytest.mark.parametrize(
    ("prefix", "pattern"),
    [
        ([3, 2], ["11100", "11100", "11100", "00011", "00011"]),  # encoder
        ([0, 0], ["10000", "11000", "11100", "00010", "00011"]),  # decoder
        ([2, 1], ["11000", "11000", "11100", "00010", "00011"]),  # prefix
    ],
)
def test_who_may_see_whom(prefix: list[int], pattern: list[str]) -> None:
    """Two packed texts of three and two tokens, drawn by hand."""
    batch = Batch(packed("the dog barked", "a fox"), np.array(prefix))
    assert ["".join("01"[int(x)] for x in row) for row in batch.visible()] == pattern


def test_selecting_sequences() -> None:
    text = packed("the dog", "a", "a fox .")
    kept = text.select(np.array([True, False, True]))
    assert [row.tolist() for row in kept.rows()] == [[5, 14], [12, 8, 15]]
    assert kept.keys.tolist() == text.keys[[0, 2]].tolist()
    assert causal(kept).output is kept
