"""Runs on a corpus of two sources: mixtures, validation loss of each source, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firth.data.shards import Shards
from firth.jobs.preparation import prepare
from firth.jobs.pretraining import PretrainResult, pretrain
from firth.training.run_directory import read_metrics, read_run
from firth.utils.errors import UsageError
from tests.training.conftest import SMALL, Killed, kill_at, notes


@pytest.fixture(scope="module")
def two_sources(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of the stories as one source, the rest as another, and a third without validation."""
    folder = tmp_path_factory.mktemp("sources")
    stories = (shards.parent / "stories/train.txt").read_text().split("\n\n")
    dev = (shards.parent / "stories/dev.txt").read_text().split("\n\n")
    parts = {"en": stories[12:], "ha": stories[4:12], "yo": stories[:4]}
    parts |= {"en-dev": dev[:3], "ha-dev": dev[3:5]}
    for name, documents in parts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(documents))
    paths = {name: folder / f"{name}.txt" for name in ("en", "ha", "yo")}
    valid = {name: [folder / f"{name}-dev.txt"] for name in ("ha", "en")}
    prepare(paths, tokenizer=shards, out=folder / "shards", valid=valid, workers=1)
    return folder / "shards"


def small(data: Path, out: Path, **options: Any) -> PretrainResult:
    overrides = SMALL | {"model.num_layers": 1, "log_every": 1, "checkpoint_every": 2}
    given = {"preset": "bert-tiny", "steps": 5, "mixture": "en=1,ha=3"} | options
    return pretrain(data=data, out=out, overrides=overrides, **given)


def test_validation_sources_have_the_numbers_of_training(two_sources: Path) -> None:
    valid = Shards(two_sources, "valid")
    assert valid.source_names == ["en", "ha", "yo"]
    assert valid.sources.tolist() == [1, 1, 0, 0, 0]


def test_a_mixture_killed_and_resumed_ends_with_the_same_bits(
    two_sources: Path, tmp_path: Path
) -> None:
    whole = small(two_sources, tmp_path / "whole")
    with pytest.raises(Killed):
        small(two_sources, tmp_path / "killed", callbacks=kill_at(4))
    with pytest.raises(UsageError, match=r"mixture\.en 0\.25, not 0\.5"):
        small(two_sources, tmp_path / "killed", mixture="en=1,ha=1", resume=True)
    small(two_sources, tmp_path / "killed", resume=True)
    one, other = (tmp_path / run / "model.safetensors" for run in ("whole", "killed"))
    assert one.read_bytes() == other.read_bytes()
    last = read_metrics(tmp_path / "whole")[-1]
    run = read_run(tmp_path / "whole")
    assert run["job"]["mixture"] == {"en": 0.25, "ha": 0.75}
    assert run["results"]["source_losses"] == whole.source_losses
    assert whole.source_losses == {name: last[f"loss {name}"] for name in ("en", "ha")}
    card = (tmp_path / "whole/README.md").read_text()
    assert "en 25.0%, ha 75.0%" in card
    assert f"loss ha {last['loss ha']:.4g}" in card
    said = " ".join(notes(tmp_path / "whole"))
    assert "not trained on: yo" in said
    assert "validation text" in said


def test_smoothing_in_proportion_is_the_run_without_a_mixture(
    two_sources: Path, tmp_path: Path
) -> None:
    small(two_sources, tmp_path / "plain", mixture=None, steps=2)
    small(two_sources, tmp_path / "alpha", mixture=None, mixture_alpha=1.0, steps=2)
    one, other = (tmp_path / run / "model.safetensors" for run in ("plain", "alpha"))
    assert one.read_bytes() == other.read_bytes()


def test_shards_without_sources_have_no_mixture(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no named sources"):
        small(shards, tmp_path / "run")
    assert small(shards, tmp_path / "run", mixture=None, steps=1).source_losses == {}
