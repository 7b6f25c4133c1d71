"""Counter-based random numbers: uniform, independent, reproducible."""

from __future__ import annotations

import numpy as np
import pytest

from firth.utils.rng import choose_positions, derive_keys, mix_bits, uniform, uniform_list


def test_mix_bits_is_splitmix64() -> None:
    """Compare with the first numbers of the authors' splitmix64 with seed 1234567."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + (i + 1) * golden) % 2**64 for i in range(5)], dtype=np.uint64)
    numbers = """6457827717110365317 3203168211198807973 9817491932198370423 4593380528125082431
        16408922859458223821"""
    expected = [int(number) for number in numbers.split()]
    assert mix_bits(states).tolist() == expected
    assert derive_keys(1234567, np.arange(5)).tolist() == expected


def test_uniform_numbers() -> None:
    keys = derive_keys(0, np.arange(400_000))
    first, second = uniform(keys, 1), uniform(keys, 2)
    for draws in (first, second):
        counts = np.bincount((draws * 100).astype(int), minlength=100)
        # Chi-square with 99 degrees of freedom: above 160 once in ten thousand.
        assert ((counts - 4000) ** 2 / 4000).sum() < 160
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.01
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.01
    neighbouring_seeds = uniform(derive_keys(1, np.arange(400_000)), 1)
    assert abs(np.corrcoef(first, neighbouring_seeds)[0, 1]) < 0.01


def test_single_draws_equal_those_of_arrays() -> None:
    for key in (0, 7, 2**64 - 1):
        assert uniform_list(key, 3, 5) == uniform(derive_keys(key, np.arange(5)), 3).tolist()


def test_choices_have_the_exact_number_and_are_uniform() -> None:
    groups = 30_000
    keys = derive_keys(5, np.arange(groups))
    sizes = np.full(groups, 6)
    chosen = choose_positions(keys, 0, sizes, np.full(groups, 2)).reshape(groups, 6)
    assert (chosen.sum(axis=1) == 2).all()
    # Each of the 15 pairs is expected in 2,000 of the 30,000 groups.
    pairs = chosen @ (1 << np.arange(6))
    counts = np.unique(pairs, return_counts=True)[1]
    assert len(counts) == 15
    assert ((counts - 2000) ** 2 / 2000).sum() < 45  # 14 degrees of freedom: once in ten thousand


def test_edge_cases() -> None:
    keys = derive_keys(0, np.arange(3))
    chosen = choose_positions(keys, 0, np.array([0, 2, 3]), np.array([1, 5, 0]))
    assert chosen.tolist() == [True, True, False, False, False]
    assert choose_positions(keys[:0], 0, np.array([], int), np.array([], int)).tolist() == []
    with pytest.raises(OverflowError):
        derive_keys(0, -1)
