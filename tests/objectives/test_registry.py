"""What the columns of the table say of an objective is what its batches are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.data.stories import write_stories
from firth.jobs.preparation import prepare
from firth.objectives.batch import Batch
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.tokenizer import Tokenizer
from firth.tokenizers.trainer import train_tokenizer

LENGTH = 64
BINARY = ("next sentence", "sentence order")  # these take no part of the vocabulary


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    write_stories(folder / "stories", words=20_000, seed=0)
    train, out = folder / "stories/train.txt", folder / "shards"
    options: dict[str, Any] = {"kind": "wordpiece", "vocab_size": 600, "sentinels": 100}
    train_tokenizer([train], workers=1, **options)[0].save(folder / "tokenizer")
    prepare([train], tokenizer=folder / "tokenizer", out=out, valid_fraction=0, workers=1)
    return out


def made(shards: Path, name: str, **options: Any) -> Batch:
    row, sampler = OBJECTIVES[name], Sampler(Shards(shards), 0)
    drawn, _ = row.draw(sampler, SamplerPosition(), length=LENGTH, tokens=1 << 16, **options)
    return row.build(sampler, drawn, Tokenizer.load(shards).vocabulary, length=LENGTH, **options)


def options_of(name: str) -> list[dict[str, Any]]:
    if name in ("causal", "prefix"):
        return [{}]
    if name == "hybrid-batches":  # a batch is of one kind
        return [{"mask_prob": 0.4, "masked_fraction": fraction} for fraction in (0, 1)]
    if "denoising" in OBJECTIVES[name].predicts:
        long = [{"noise_density": 0.4, "mean_span_length": mean} for mean in (1.0, 8.0)]
        return [{}, {"noise_density": 0.05}, {"noise_density": 0.4}, *long]
    given: list[dict[str, Any]] = [{}, {"mask_prob": 0.05}, {"mask_prob": 0.4}]
    if name == "hybrid":
        given += [{"mask_prob": 0.4, "masked_fraction": 0.9}]
    return given


CASES = [(name, options) for name in OBJECTIVES for options in options_of(name)]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_nothing_is_longer_than_asked_for(shards: Path, name: str, options: dict[str, Any]) -> None:
    batch = made(shards, name, **options)
    assert batch.inputs.lengths.max() <= LENGTH
    assert batch.output.lengths.max() <= LENGTH
    assert max(batch.inputs.lengths.max(), batch.output.lengths.max()) >= LENGTH - 2  # and is full


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_share_that_is_predicted(shards: Path, name: str, options: dict[str, Any]) -> None:
    batch = made(shards, name, **options)
    counts = batch.counts()
    asked = sum(count for what, count in counts.items() if what not in BINARY)
    assert OBJECTIVES[name].predicted_fraction(**options) == pytest.approx(
        asked / batch.tokens, rel=0.15
    )
