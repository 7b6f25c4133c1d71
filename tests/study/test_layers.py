"""The study of layers: made-up vectors with a known place of each task, and the cells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import firth
from firth.study import layers as study
from firth.study.cells.probe_cells import (
    TARGETS,
    VECTORS,
    layer_features,
    probed,
    story_examples,
    training_part,
)
from firth.study.engine.cell import Cell
from firth.study.engine.cell_cache import CellCache, CellContext
from firth.study.engine.statistics import Scores, mean_over_seeds
from firth.study.layer_figures import TaskLayers, centre_metric
from firth.utils.errors import InputError, UsageError
from firth.utils.files import write_array, write_json

PLACES = {"pos": 0, "agreement": 1, "entities": 1, "topic": 2}


def made_up(context: CellContext, *, data: Cell, **settings: Any) -> Mapping[str, Any]:
    """Put the labels of a task of the stories into one of three layers of noise."""
    place = PLACES[data.settings["file"].name.split("/")[1]]
    rng = np.random.default_rng(place)
    vectors = rng.normal(size=(3, 160, 6)).astype(np.float32)
    targets = rng.integers(0, 2, 160)
    vectors[place] += 3 * targets[:, None]
    write_array(context.folder / VECTORS, vectors)
    types = [f"text {i}" for i in range(160)]
    write_json(context.folder / TARGETS, {"targets": targets.tolist(), "types": types})
    return {"layers": 2, "train": 100, "test": 60, "labels": 2}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(study, "layer_features", made_up)
    return tmp_path / "out"


def test_tasks_are_found_where_they_are(folder: Path) -> None:
    tasks = "part of speech,agreement,entities,topic"
    found = firth.run_study(
        "layers", out=folder, seeds=3, workers=1, overrides={"tasks": tasks, "train_size": 60}
    )
    assert found.verdict.holds is True
    assert found.verdict.value == pytest.approx((1 + 2) / 2 - (0 + 1) / 2, abs=0.3)
    others = {one.name: one.value for one in found.analysis.findings[1:]}
    assert others == pytest.approx(
        {
            "layers-part-of-speech": 1.5,
            "layers-agreement": 0.5,
            "layers-entities": 1,
            "layers-topic": 2,
        },
        abs=0.3,
    )
    rows = {(row["task"], row["layer"]): row for row in found.values()["rows"]}
    assert len(rows) == 4 * 3
    assert rows["topic", 2]["accuracy"]["value"] > 0.95 > rows["topic", 1]["accuracy"]["value"]
    assert rows["topic", 2]["selectivity"]["value"] > 0.25
    assert rows["entities", 0]["centre_of_gravity"]["value"] == pytest.approx(1, abs=0.3)
    assert len((folder / "results.jsonl").read_text().splitlines()) == len(rows)
    assert any("embedding layer for part of speech:" in note for note in found.notes)


def test_wrong_settings_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'grammar'.*part of speech"):
        firth.run_study("layers", out=folder, overrides={"tasks": "grammar"})
    (tmp_path / "one.tsv").write_text("text\tlabel\na\tb\n")
    with pytest.raises(UsageError, match="not span"):
        firth.run_study("layers", out=folder, data=tmp_path / "one.tsv", task="span")


# ---- cells --------------------------------------------------------------------------------------


def rows(context: CellContext, *, file: Path) -> Mapping[str, Any]:
    for name in ("train", "test"):
        (context.folder / f"{name}.jsonl").write_text(file.read_text())
    return {}


def data_cell(tmp_path: Path, examples: list[dict[str, Any]]) -> Cell:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in examples))
    return Cell(rows, {"file": file})


def features(data: Cell, task: str) -> Cell:
    model = Path(firth.__file__).parent / "embedded" / "stories-encoder"
    settings = {"model": model, "task": task, "data": data, "test_size": 40}
    return Cell(layer_features, {**settings, "train_size": 30, "parts": 3})


def test_words_of_a_tagged_file_are_probed(tmp_path: Path) -> None:
    sentence = {"words": ["Anna", "saw", "Rome", "."], "tags": ["B-PER", "O", "B-LOC", "O"]}
    cache, cell = CellCache(tmp_path), features(data_cell(tmp_path, [sentence] * 40), "tag")
    sizes = cache.run(cell).values
    assert (sizes["train"], sizes["test"], sizes["labels"]) == (90, 40, 3)
    part = {"train_size": 30, "part": 2, "parts": 3}
    stored = json.loads((cache.directory(cell) / TARGETS).read_text())
    assert np.mean(np.array(stored["targets"]) == 1) <= 0.51  # LOC, O, PER
    found = cache.run(Cell(probed, {"features": cell, **part, "strength": 0.1})).values
    assert sum(found["scores"]["layer 1"]["numerators"]) == 40
    assert found["train"] == 30
    assert sum(found["weights"]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("count", "labels", "message"), [(5, "ab", "5 test"), (50, "ab", "60"), (60, "a", "one")]
)
def test_too_few_examples_or_labels(tmp_path: Path, count: int, labels: str, message: str) -> None:
    examples = [{"text": f"It is {i}.", "label": labels[i % len(labels)]} for i in range(count)]
    with pytest.raises(InputError, match=message):
        CellCache(tmp_path).run(features(data_cell(tmp_path, examples), "classify"))


def test_seeds_have_no_training_example_in_common() -> None:
    for available in (90, 1000):
        parts = [np.arange(available)[training_part(available, 40, i, 5)] for i in range(5)]
        assert {len(part) for part in parts} == {min(40, available // 5)}
        assert len(set(np.concatenate(parts).tolist())) == 5 * len(parts[0])


def test_sentences_of_a_minimal_pair_are_on_one_side(tmp_path: Path) -> None:
    file = tmp_path / "agreement.jsonl"
    pairs = [{"sentence_good": f"{i} runs.", "sentence_bad": f"{i} run."} for i in range(10)]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    cache, cell = CellCache(tmp_path), Cell(story_examples, {"task": "classify", "file": file})
    assert cache.run(cell).values == {"train": 12, "test": 8}
    written = (cache.directory(cell) / "test.jsonl").read_text().splitlines()
    assert json.loads(written[0]) == {"text": "6 runs.", "label": "grammatical"}
    assert json.loads(written[-1]) == {"text": "9 run.", "label": "ungrammatical"}


def test_a_centre_of_gravity_is_no_layer_that_a_model_does_not_have() -> None:
    scores = [Scores(np.ones((2, 4)), np.ones((2, 4)))] * 3
    metric = centre_metric(TaskLayers(scores, scores, np.ones((2, 3)) / 3, np.array([0.0, 2.0])))
    assert (metric.low, metric.value, metric.high) == (0, 1, 2)


def test_the_mean_over_seeds_is_that_of_students_t() -> None:
    values = np.array([1.2, 0.4, 2.2, 1.9, -0.3])
    expected = stats.ttest_1samp(values, 0)
    found = mean_over_seeds(values)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.metric.low, found.metric.high) == pytest.approx(expected.confidence_interval())
    assert mean_over_seeds(np.array([2.0])).holds is None
    assert mean_over_seeds(np.array([2.0, 2.0])).holds is True
