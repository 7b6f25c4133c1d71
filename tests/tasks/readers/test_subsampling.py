"""Samples that keep the shares of the labels, always the same; and examples that stand twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.tasks.readers.examples import LabelledExample, QuestionExample, TaggedExample
from firth.tasks.readers.subsampling import overlap, stratified_sample
from firth.utils.errors import UsageError


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 200),
    st.integers(0, 1000),
)
def test_every_label_keeps_its_share(sizes: list[int], count: int, seed: int) -> None:
    labels = [str(name) for name, size in enumerate(sizes) for _ in range(size)]
    chosen, rest = stratified_sample(labels, count=count, seed=seed)
    assert sorted(chosen + rest) == list(range(len(labels)))
    assert (chosen, rest) == (sorted(chosen), sorted(rest))
    assert len(chosen) == min(count, len(labels))
    taken = Counter(labels[place] for place in chosen)
    shares = [size * len(chosen) / len(labels) for size in sizes]
    if len(chosen) >= len(sizes):
        assert len(taken) == len(sizes)
    if min(shares) >= 1:
        for name, share in enumerate(shares):
            assert abs(taken[str(name)] - share) < 1


def test_the_shares_by_hand() -> None:
    """Of 70, 27 and 3 in a hundred, ten are 7, 2.7 and 0.3: the rare one gets its one."""
    labels = ["a"] * 70 + ["b"] * 27 + ["c"] * 3
    chosen, _ = stratified_sample(labels, count=10)
    assert Counter(labels[place] for place in chosen) == {"a": 7, "b": 2, "c": 1}
    chosen, _ = stratified_sample(labels, count=2)  # no room for each
    assert Counter(labels[place] for place in chosen) == {"a": 1, "b": 1}
    chosen, _ = stratified_sample(labels, count=20)
    assert Counter(labels[place] for place in chosen) == {"a": 14, "b": 5, "c": 1}


def test_a_sample_is_the_same_each_time_and_another_with_another_seed() -> None:
    labels = ["a", "b"] * 100
    assert stratified_sample(labels, count=20, seed=1) == stratified_sample(
        labels, count=20, seed=1
    )
    assert stratified_sample(labels, count=20, seed=1) != stratified_sample(
        labels, count=20, seed=2
    )
    other = ["y", "x"] * 100  # other names for the same
    assert stratified_sample(labels, count=20, seed=1) == stratified_sample(other, count=20, seed=1)


def test_every_example_is_drawn_equally_often() -> None:
    """200 seeds, 5 of 20: each place 50 times, with a deviation of 6.1 (binomial)."""
    drawn = Counter(
        p for seed in range(200) for p in stratified_sample([None] * 20, count=5, seed=seed)[0]
    )
    assert sum(drawn.values()) == 1000
    assert all(abs(drawn[place] - 50) < 4 * 6.1 for place in range(20))


def test_more_than_there_is_takes_everything() -> None:
    assert stratified_sample(["a", "b", "a"], count=10) == ([0, 1, 2], [])
    assert stratified_sample([], count=3) == ([], [])


def test_a_part_that_is_held_out_leaves_one_of_each_label() -> None:
    labels = ["a"] * 20 + ["b", "b", "c"]
    held, rest = stratified_sample(labels, count=5, leave=1)
    assert Counter(labels[place] for place in held) == {"a": 4, "b": 1}
    assert {labels[place] for place in rest} == {"a", "b", "c"}
    assert stratified_sample(["a", "b"], count=1, leave=1) == ([], [0, 1])


def test_scores_are_sampled_from_every_tenth() -> None:
    scores = np.random.default_rng(0).exponential(size=1000).tolist()
    chosen, _ = stratified_sample(scores, count=50)
    tenths = np.quantile(scores, np.arange(0.1, 1, 0.1))
    counts = np.bincount(np.searchsorted(tenths, [scores[place] for place in chosen]))
    assert counts.tolist() == [5] * 10
    assert len(stratified_sample(scores, count=3)[0]) == 3
    assert len(stratified_sample([1.5, 1.5], count=1)[0]) == 1


def test_several_labels_are_one_whatever_their_order() -> None:
    labels = [("a", "b"), ("b", "a"), ("a",), ()] * 25
    chosen, _ = stratified_sample(labels, count=20)
    assert Counter(tuple(sorted(labels[p])) for p in chosen) == {("a", "b"): 10, ("a",): 5, (): 5}


def test_misuse() -> None:
    with pytest.raises(UsageError):
        stratified_sample(["a"], count=0)


def test_overlap() -> None:
    train = [LabelledExample(text="a  b", label="x"), LabelledExample(text="c", second="d")]
    dev = [
        LabelledExample(text=" a b\n", label="y"),
        LabelledExample(text="A b"),
        LabelledExample(text="c d"),
        LabelledExample(text="c", second="d "),
        LabelledExample(text="c", second="d "),
    ]
    assert overlap(train, dev) == 3
    assert (
        overlap(
            [TaggedExample(words=("a", "b"))],
            [TaggedExample(words=("a", "b")), TaggedExample(words=("a",))],
        )
        == 1
    )
    asked = QuestionExample(id="1", question="Who?", context="Ada.")
    assert overlap([asked], [QuestionExample(id="2", question="Who?", context="Ada.")]) == 1


def test_a_fraction_is_no_count() -> None:
    with pytest.raises(UsageError, match=r"1\.5"):
        stratified_sample(["a", "b", "a"], count=1.5)  # type: ignore[arg-type]
