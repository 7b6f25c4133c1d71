"""Masks describe who may see whom; their groups lose no token on the way to rows and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firth.models.masks import CLOSE, LONGER, Group, Mask
from firth.objectives.batch import Batch, Packed

# (length, prefix) of each sequence; a prefix may be longer than its sequence
STREAMS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("lengths", "prefix", "pattern"),
    [
        ([3, 2], None, "full"),
        ([3, 2], [3, 2], "full"),
        ([3, 2], [9, 9], "full"),
        ([3, 2], [0, 0], "causal"),
        ([3, 2], [1, 0], "causal"),  # one token that sees itself
        ([3, 1], [0, 1], "causal"),
        ([3, 2], [2, 0], "prefix"),
        ([3, 2], [3, 0], "prefix"),
        ([1, 1], [0, 0], "causal"),
    ],
)
def test_the_pattern_is_recognised(
    lengths: list[int], prefix: list[int] | None, pattern: str
) -> None:
    assert Mask(lengths, prefix=prefix).pattern == pattern


def test_a_decoders_mask_is_a_lower_triangle() -> None:
    expected = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(Mask.causal([5]).visible(), expected)


@given(STREAMS)
def test_it_sees_what_the_objectives_say(stream: list[tuple[int, int]]) -> None:
    lengths, prefix = map(np.array, zip(*stream, strict=True))
    starts = np.cumsum([0, *lengths])
    packed = Packed(np.zeros(starts[-1], np.int64), starts, np.zeros(len(lengths), np.uint64))
    mask = Mask(lengths, prefix=prefix)
    np.testing.assert_array_equal(mask.visible().numpy(), Batch(packed, prefix).visible())
    np.testing.assert_array_equal(mask.owners.numpy(), packed.owners)
    np.testing.assert_array_equal(mask.offsets.numpy(), packed.offsets)
    np.testing.assert_array_equal(mask.starts.numpy(), packed.starts)


@given(STREAMS, st.integers(0, 5))
def test_the_rows_of_a_group_see_what_the_stream_sees(
    stream: list[tuple[int, int]], window: int
) -> None:
    lengths, prefix = zip(*stream, strict=True)
    mask = Mask(lengths, prefix=prefix)
    for group in mask.groups:
        among = mask.visible(window)[group.places][:, group.places]
        allowed = group.allowed(window)
        if allowed is None:
            allowed = torch.ones(1, 1, 1, dtype=torch.bool)
        shape = group.count, group.length, group.length
        for row, sequence in enumerate(group.sequences):
            length = lengths[sequence]
            mine = mask.owners[group.places] == sequence
            seen = allowed.expand(shape)[row]
            assert torch.equal(seen[:length, :length], among[mine][:, mine])
            assert not seen[:length, length:].any(), "a token sees padding"
            assert seen.any(-1).all(), "a row of the softmax is empty"


@given(STREAMS)
def test_groups_hold_every_sequence_once_and_put_everything_back(
    stream: list[tuple[int, int]],
) -> None:
    mask = Mask([length for length, _ in stream])
    held = np.concatenate([group.sequences for group in mask.groups])
    np.testing.assert_array_equal(np.sort(held), np.arange(len(mask)))
    x = torch.arange(2 * mask.tokens).view(mask.tokens, 2)
    parts = [group.flat(group.pad(x)) for group in mask.groups]
    for group, part in zip(mask.groups, parts, strict=True):
        assert torch.equal(part, x[group.places])
        close = mask.lengths[group.sequences].min() >= CLOSE * group.length
        assert close or group.count * group.length <= LONGER * mask.tokens
    assert torch.equal(torch.cat(parts)[mask.ungrouped], x)


def test_rows_are_padded_on_the_right_with_zeros() -> None:
    rows = Mask([3, 1]).rows
    assert rows.pad(torch.tensor([1, 2, 3, 4])).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert rows.real.tolist() == [[True, True, True], [True, False, False]]


def test_a_group_takes_only_its_own_rows() -> None:
    group = Group(Mask([2, 1, 3]), np.array([0, 2]))
    padded = group.pad(torch.tensor([1, 2, 3, 4, 5, 6]))
    assert padded.tolist() == [[1, 2, 0], [4, 5, 6]]
    assert group.flat(padded).tolist() == [1, 2, 4, 5, 6]


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


def test_a_window_as_wide_as_the_sequence_hides_nothing() -> None:
    mask = Mask([6, 4], prefix=[3, 0])
    assert torch.equal(mask.visible(window=5), mask.visible())


def test_a_huge_spread_of_lengths_gives_few_groups_and_little_padding() -> None:
    lengths = np.random.default_rng(1).integers(1, 10_000, size=2000)
    mask = Mask(lengths)
    # each group reaches down to CLOSE of its longest: log(10000) / log(1 / 0.5) = 13.3
    assert len(mask.groups) <= 27
    assert sum(group.count * group.length for group in mask.groups) < lengths.sum() / CLOSE


def test_equal_lengths_are_one_group_without_padding() -> None:
    [group] = Mask([4, 4, 4]).groups
    assert group.even
    assert group.whole
    assert group.allowed() is None


def test_a_sequence_of_one_token_sees_itself_alone() -> None:
    for mask in (Mask([1]), Mask.causal([1]), Mask([1], prefix=[1])):
        assert mask.visible().tolist() == [[True]]
        assert mask.visible(window=1).tolist() == [[True]]
        assert mask.groups[0].pad(torch.tensor([5])).tolist() == [[5]]


def test_an_empty_stream_has_nothing() -> None:
    mask = Mask([])
    assert (len(mask), mask.tokens, mask.longest) == (0, 0, 0)
    assert mask.visible().shape == (0, 0)
    assert sum(group.count for group in mask.groups) == 0
    assert mask.starts.tolist() == [0]
    assert mask.ungrouped.shape == (0,)
