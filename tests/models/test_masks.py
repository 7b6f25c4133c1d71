"""Masks agree with the objectives' attention masks; padding and unpadding keep every token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firth.data.packing import PackedSequences
from firth.models.masks import MAX_PADDING_RATIO, MIN_LENGTH_RATIO, Mask
from firth.objectives.batch import Batch

# (length, prefix) of each sequence; a prefix may be longer than its sequence
BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("lengths", "prefix", "pattern"),
    [
        ([3, 2], None, "full"),
        ([3, 2], [3, 2], "full"),
        ([3, 2], [0, 0], "causal"),
        ([3, 2], [1, 0], "causal"),  # a prefix of one token
        ([3, 2], [2, 0], "prefix"),
        ([3, 2], [3, 0], "prefix"),
    ],
)
def test_the_pattern_is_recognised(
    lengths: list[int], prefix: list[int] | None, pattern: str
) -> None:
    assert Mask(lengths, prefix=prefix).pattern == pattern


@given(BATCHES)
def test_masks_equal_those_of_objectives(batch: list[tuple[int, int]]) -> None:
    lengths, prefix = map(np.array, zip(*batch, strict=True))
    starts = np.cumsum([0, *lengths])
    packed = PackedSequences(
        np.zeros(starts[-1], np.int64), starts, np.zeros(len(lengths), np.uint64)
    )
    mask = Mask(lengths, prefix=prefix)
    np.testing.assert_array_equal(mask.visible().numpy(), Batch(packed, prefix).attention_mask())
    np.testing.assert_array_equal(mask.sequence_ids.numpy(), packed.owners)
    np.testing.assert_array_equal(mask.positions.numpy(), packed.offsets)
    np.testing.assert_array_equal(mask.starts.numpy(), packed.starts)


@given(BATCHES, st.integers(0, 5))
def test_masks_of_padded_rows_equal_the_dense_mask(
    batch: list[tuple[int, int]], window: int
) -> None:
    lengths, prefix = zip(*batch, strict=True)
    mask = Mask(lengths, prefix=prefix)
    for group in mask.groups:
        among = mask.visible(window)[group.token_indices][:, group.token_indices]
        allowed = group.allowed(window)
        if allowed is None:
            allowed = torch.ones(1, 1, 1, dtype=torch.bool)
        shape = group.count, group.length, group.length
        for row, sequence in enumerate(group.sequences):
            length = lengths[sequence]
            mine = mask.sequence_ids[group.token_indices] == sequence
            visible = allowed.expand(shape)[row]
            assert torch.equal(visible[:length, :length], among[mine][:, mine])
            assert not visible[:length, length:].any(), "a token attends to padding"
            assert visible.any(-1).all(), "a row of the softmax is empty"


@given(BATCHES)
def test_groups_hold_every_sequence_once_and_unpad_in_order(
    batch: list[tuple[int, int]],
) -> None:
    mask = Mask([length for length, _ in batch])
    held = np.concatenate([group.sequences for group in mask.groups])
    np.testing.assert_array_equal(np.sort(held), np.arange(len(mask)))
    x = torch.arange(2 * mask.num_tokens).view(mask.num_tokens, 2)
    parts = [group.unpad(group.pad(x)) for group in mask.groups]
    for group, part in zip(mask.groups, parts, strict=True):
        assert torch.equal(part, x[group.token_indices])
        close = mask.lengths[group.sequences].min() >= MIN_LENGTH_RATIO * group.length
        assert close or group.count * group.length <= MAX_PADDING_RATIO * mask.num_tokens
    assert torch.equal(torch.cat(parts)[mask.ungroup_order], x)


def test_rows_are_padded_on_the_right_with_zeros() -> None:
    rows = Mask([3, 1]).rows
    assert rows.pad(torch.tensor([1, 2, 3, 4])).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert rows.padding_mask.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        (Mask([5]), ["11000", "11100", "01110", "00111", "00011"]),
        (Mask.causal([5]), ["10000", "11000", "01100", "00110", "00011"]),
        (Mask([5], prefix=[3]), ["11000", "11100", "01100", "00110", "00011"]),
        (Mask([2, 3]), ["11000", "11000", "00110", "00111", "00011"]),
    ],
)
def test_a_window_of_one_sees_the_neighbours(mask: Mask, rows: list[str]) -> None:
    drawn = ["".join("01"[int(x)] for x in row) for row in mask.visible(window=1)]
    assert drawn == rows


def test_a_window_as_long_as_the_sequence() -> None:
    mask = Mask([6, 4], prefix=[3, 0])
    assert torch.equal(mask.visible(window=5), mask.visible())


def test_very_different_lengths_give_few_groups_and_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(1, 10_000, size=2000)
    mask = Mask(lengths)
    # lengths within a group differ by at most MIN_LENGTH_RATIO: log(10000) / log(1 / 0.5) = 13.3
    assert len(mask.groups) <= 27
    assert (
        sum(group.count * group.length for group in mask.groups) < lengths.sum() / MIN_LENGTH_RATIO
    )


def test_equal_lengths_are_one_group_without_padding() -> None:
    [group] = Mask([4, 4, 4]).groups
    assert group.equal_lengths
    assert group.is_whole_batch
    assert group.allowed() is None


def test_an_empty_batch() -> None:
    mask = Mask([])
    assert (len(mask), mask.num_tokens, mask.max_length) == (0, 0, 0)
    assert mask.visible().shape == (0, 0)
    assert sum(group.count for group in mask.groups) == 0
    assert mask.starts.tolist() == [0]
    assert mask.ungroup_order.shape == (0,)
