"""The registry of objectives describes the batches that they build."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from firth.data.sampler import Sampler, SamplerPosition
from firth.data.shards import Shards
from firth.objectives import batch as batches
from firth.objectives import bilm, causal, denoising, masked, pairs, replaced, text_to_text
from firth.objectives.batch import Batch
from firth.objectives.registry import OBJECTIVES
from firth.tokenizers.tokenizer import Tokenizer

LENGTH = 64
BINARY = ("next sentence", "sentence order")  # not predictions of tokens


def build(shards: Path, name: str, **options: Any) -> Batch:
    row, sampler = OBJECTIVES[name], Sampler(Shards(shards), 0)
    drawn, _ = row.draw(sampler, SamplerPosition(), length=LENGTH, tokens=1 << 16, **options)
    return row.build(sampler, drawn, Tokenizer.load(shards).vocabulary, length=LENGTH, **options)


def options_of(name: str) -> list[dict[str, Any]]:
    if name.split("-")[0] in ("causal", "prefix", "bilm") and "denoising" not in name:
        return [{}]
    if name == "hybrid-batches":  # a batch is all masked or all causal
        return [{"mask_prob": 0.4, "masked_fraction": fraction} for fraction in (0, 1)]
    if "denoising" in OBJECTIVES[name].predicts:
        long = [{"noise_density": 0.4, "mean_span_length": mean} for mean in (1.0, 8.0)]
        low = 0.05 if OBJECTIVES[name].start_token_roles else 0.1  # one sequence: shorter texts
        return [{}, {"noise_density": low}, {"noise_density": 0.4}, *long]
    given: list[dict[str, Any]] = [{}, {"mask_prob": 0.05}, {"mask_prob": 0.4}]
    if name == "hybrid":
        given += [{"mask_prob": 0.4, "masked_fraction": 0.9}]
    return given


CASES = [(name, options) for name in OBJECTIVES for options in options_of(name)]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_lengths_and_predicted_fraction(shards: Path, name: str, options: dict[str, Any]) -> None:
    batch = build(shards, name, **options)
    assert LENGTH - 2 <= max(batch.inputs.lengths.max(), batch.output.lengths.max()) <= LENGTH
    targets = sum(count for what, count in batch.counts().items() if what not in BINARY)
    fraction = OBJECTIVES[name].predicted_fraction(**options)
    assert fraction == pytest.approx(targets / batch.tokens, rel=0.15)


def masked_places(shards: Path, name: str, epoch: int, **options: Any) -> set[tuple[int, int]]:
    """Return the masked positions of an epoch: (document, position in the document)."""
    row, sampler = OBJECTIVES[name], Sampler(Shards(shards), 0)
    vocabulary, places = Tokenizer.load(shards).vocabulary, set[tuple[int, int]]()
    position = SamplerPosition(epoch, 0)
    while position.epoch == epoch:
        drawn, position = row.draw(sampler, position, length=LENGTH, tokens=500, **options)
        batch = row.build(sampler, drawn, vocabulary, length=LENGTH, **options)
        at = batch.predictions["masked"].positions
        owners, offsets = batch.inputs.owners[at], batch.inputs.offsets[at]
        starts = drawn.starts[owners] + offsets - 1  # after [CLS]
        places |= set(zip(drawn.documents[owners].tolist(), starts.tolist(), strict=True))
    return places


@pytest.mark.parametrize("name", ["masked", "masked-words"])
def test_static_masks_are_those_of_the_first_epoch(shards: Path, name: str) -> None:
    """Batches end elsewhere in each epoch, so that a few sequences have other tokens."""
    for static, low, high in ((True, 0.9, 1.0), (False, 0.1, 0.2)):
        first, later = (masked_places(shards, name, epoch, static=static) for epoch in (0, 3))
        common = len(first & later) / len(later)
        assert low <= common <= high
    one, another = (masked_places(shards, name, 0, static=value) for value in (False, True))
    assert len(another) == pytest.approx(len(one), rel=0.02)  # as many


@pytest.mark.parametrize(
    "module", [batches, bilm, causal, denoising, masked, pairs, replaced, text_to_text]
)
def test_docstring_literals(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
