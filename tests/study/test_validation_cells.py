"""Losses of held-out documents: equal to those of the training code, and on the same masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import firth
from firth.data.shards import Shards
from firth.study.cells.input_cells import model_path, prepared_text
from firth.study.cells.validation_cells import check_validation, validated
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache
from firth.study.engine.statistics import Scores
from firth.utils.errors import InputError

TEXTS = [f"Once upon a time there was a cat. It saw {n} dogs and ran to a tree." for n in range(9)]


@pytest.fixture
def cache(tmp_path: Path) -> CellCache:
    return CellCache(tmp_path / "cells")


def shards(tmp_path: Path, model: Path) -> Cell:
    file = tmp_path / "text.txt"
    file.write_text("\n\n".join(TEXTS))
    values = {"text": file, "valid": file, "tokenizer": model, "vocab_size": 0}
    return Cell(prepared_text, values)


def scores(cache: CellCache, data: Cell, model: Path, objective: str, **options: float) -> Scores:
    values = {
        "model": model,
        "data": data,
        "objective": objective,
        "max_length": 64,
        "documents": 100,
        "options": options,
    }
    found = cache.run(Cell(validated, values)).values["scores"]
    assert 0 < Scores.of([found["accuracy"]]).value < 1
    return Scores.of([found["loss"]])


def test_losses_of_a_decoder_are_its_log_probabilities(cache: CellCache, tmp_path: Path) -> None:
    model = model_path("stories-decoder")
    found = scores(cache, shards(tmp_path, model), model, "causal")
    for row, text in zip(found.numerators[0], TEXTS, strict=True):
        expected = firth.score(model, text)
        # The study also predicts the end of the text.
        assert row > -expected.total
        assert row == pytest.approx(-expected.total, rel=0.2)


def test_masks_are_the_same_for_all_models(cache: CellCache, tmp_path: Path) -> None:
    model = model_path("stories-encoder")
    data = shards(tmp_path, model)
    options = {"mask_prob": 0.15, "keep_prob": 0.0, "random_prob": 0.0}
    found = scores(cache, data, model, "masked", **options)
    lengths = Shards(cache.directory(data) / "shards", "valid").lengths
    np.testing.assert_array_equal(found.denominators[0], np.rint(0.15 * lengths))
    harder = scores(cache, data, model, "masked", **{**options, "mask_prob": 0.8})
    assert harder.value > found.value  # less context


def test_a_text_without_validation_documents() -> None:
    with pytest.raises(InputError, match="validation"):
        check_validation({"train": {"documents": 5}})
