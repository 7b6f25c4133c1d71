"""Mixtures of sources: proportions of the sampled tokens, repeated documents, wrong weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from firth.data.mixture import resolve_mixture, smoothed_mixture
from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import FORMAT, Shards, TokenizedDocuments, write_shard
from firth.utils.errors import UsageError

SIZES = {"en": 400, "ha": 60, "yo": 15}  # documents


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Two shards with documents of 5 to 40 tokens from three sources; every token is a source."""
    folder, rng = tmp_path_factory.mktemp("mixture"), np.random.default_rng(0)
    sources = np.repeat(np.arange(3, dtype=np.uint16), list(SIZES.values()))
    entries = []
    for name, half in (("train-00000", sources[:430]), ("train-00001", sources[430:])):
        lengths = rng.integers(5, 41, size=len(half))
        tokens = np.repeat(half, lengths)
        passage = TokenizedDocuments(tokens, lengths, lengths, half)
        entries.append(write_shard(folder, name, [passage]))
    index = {"format": FORMAT, "tokenizer": "", "report": {}, "plan": {}, "sources": list(SIZES)}
    index["splits"] = {"train": {"shards": entries}}
    (folder / "index.json").write_text(json.dumps(index))
    return Shards(folder)


def test_shards_know_the_source_of_each_document(shards: Shards) -> None:
    assert np.bincount(shards.sources).tolist() == list(SIZES.values())
    assert all((shards[i] == shards.sources[i]).all() for i in range(len(shards)))
    assert sum(shards.source_tokens.values()) == shards.tokens
    shards.verify()


@pytest.mark.parametrize(
    "mixture", [{"en": 0.3, "ha": 0.5, "yo": 0.2}, {"ha": 0.9, "yo": 0.1}, {"yo": 1.0}]
)
def test_sampled_tokens_have_the_proportions_of_the_mixture(
    shards: Shards, mixture: dict[str, float]
) -> None:
    sampler, position = Sampler(shards, 1, mixture), SamplerPosition()
    counts = np.zeros(3)
    while position.epoch < 4:
        spans, position = sampler.take(position, length=32, tokens=256)
        counts += np.bincount(sampler.gather(spans).tokens, minlength=3)
    expected = [mixture.get(name, 0) for name in SIZES]
    assert counts / counts.sum() == pytest.approx(expected, abs=0.015)


def test_documents_of_a_source_are_repeated_equally_often(shards: Shards) -> None:
    sampler = Sampler(shards, 0, {"en": 0.5, "yo": 0.5})
    orders = [sampler.order(epoch) for epoch in range(7)]
    for source in (0, 2):
        counts = np.bincount(np.concatenate(orders), minlength=len(shards))
        assert np.ptp(counts[shards.sources == source]) <= 1
    assert not np.array_equal(orders[0], orders[1])


def test_a_mixture_in_proportion_to_the_text_is_no_mixture(shards: Shards) -> None:
    same = Sampler(shards, 5, smoothed_mixture(shards.source_tokens, alpha=1))
    for epoch in (0, 1, 9):
        assert (same.order(epoch) == Sampler(shards, 5).order(epoch)).all()


def test_what_follows_depends_on_the_position_alone(shards: Shards) -> None:
    mixture = {"en": 0.1, "ha": 0.2, "yo": 0.7}
    sampler, position = Sampler(shards, 2, mixture), SamplerPosition()
    while position.epoch < 2:
        _, position = sampler.take(position, length=20, tokens=300)
    spans, after = sampler.take(position, length=20, tokens=300)
    again, then = Sampler(shards, 2, mixture).take(position, length=20, tokens=300)
    assert after == then
    for one, other in zip(vars(spans).values(), vars(again).values(), strict=True):
        assert (one == other).all()


def test_a_tiny_source_does_not_make_a_huge_epoch(shards: Shards) -> None:
    order = Sampler(shards, 0, {"en": 1e-6, "yo": 1 - 1e-6}).order(0)
    assert len(order) <= 4 * (SIZES["en"] + SIZES["yo"]) + 2


def test_random_second_texts_are_in_the_mixture(shards: Shards) -> None:
    sampler = Sampler(shards, 0, {"en": 0.5, "yo": 0.5})
    for draw in np.linspace(0, 0.999, 50):
        other, _, _ = sampler._random_text(450, [float(draw), 0.0], 10)
        assert shards.sources[other] != 1
        assert other != 450


def test_smoothing_is_that_of_xlm_r() -> None:
    # 1000^0.3 = 7.9433, 100^0.3 = 3.9811, 10^0.3 = 1.9953; their sum is 13.9196.
    found = smoothed_mixture({"en": 1000, "ha": 100, "yo": 10, "none": 0}, alpha=0.3)
    assert found == pytest.approx({"en": 0.5707, "ha": 0.2860, "yo": 0.1433}, abs=1e-4)
    assert smoothed_mixture({"a": 7, "b": 1}, alpha=0) == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("weights", ["en=3, ha=1", {"en": 3, "ha": 1}])
def test_weights_are_relative(shards: Shards, weights: Any) -> None:
    assert resolve_mixture(shards, weights, None) == {"en": 0.75, "ha": 0.25}
    assert resolve_mixture(shards, None, None) is None


@pytest.mark.parametrize(
    ("weights", "alpha", "facts"),
    [
        ("en=1,sw=2", None, "'sw'.*en, ha, yo"),
        ("en=1,ha=0", None, "ha .*positive.*0"),
        ("en=-1", None, "en .*positive.*-1"),
        ("en=nan", None, "en .*positive.*nan"),
        ("en=much", None, "en .*positive.*much"),
        ("en", None, "en=0.3,ha=0.7"),
        ("en=1,en=2", None, "en=1,en=2"),
        ({}, None, "en=0.3,ha=0.7"),
        (["en"], None, "en=0.3,ha=0.7"),
        ({"en": "1"}, None, "en .*positive"),
        ("en=1", 0.3, "not both"),
        (None, 1.5, r"1\.5"),
        (None, float("nan"), "nan"),
    ],
)
def test_wrong_mixtures(shards: Shards, weights: Any, alpha: float | None, facts: str) -> None:
    with pytest.raises(UsageError, match=facts):
        resolve_mixture(shards, weights, alpha)
