"""A run is resumed only with the command, the data and the parents that it started with."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth.jobs.pretraining import PretrainResult, pretrain
from firth.training.run_directory import check_run_directory, read_metrics, read_run
from firth.utils.errors import InputError, UsageError
from tests.training.conftest import SMALL, Killed, kill_at

Run = Callable[..., PretrainResult]


def small(shards: Path, out: Path, **options: Any) -> PretrainResult:
    overrides = SMALL | {"model.num_layers": 2, "log_every": 1} | options.pop("overrides", {})
    given = {"preset": "bert-tiny", "objective": "masked", "steps": 4} | options
    return pretrain(data=shards, out=out, overrides=overrides, **given)


@pytest.fixture(scope="module")
def parents(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model to continue from, and a teacher."""
    folder = tmp_path_factory.mktemp("parents")
    small(shards, folder / "source", steps=1)
    small(shards, folder / "teacher", steps=1, overrides={"model.num_layers": 4})
    return {name: folder / name for name in ("source", "teacher")}


@pytest.fixture
def run(shards: Path, tmp_path: Path, parents: dict[str, Path]) -> Run:
    """A run in the same directory, with parents by their names."""

    def pretrained(*names: str, **options: Any) -> PretrainResult:
        return small(shards, tmp_path / "run", **{n: parents[n] for n in names}, **options)

    return pretrained


@pytest.fixture
def stopped(run: Run) -> Run:
    """Start a run that is killed at its second step."""

    def begin(*names: str, **options: Any) -> None:
        with pytest.raises(Killed):
            run(*names, callbacks=kill_at(2), **options)

    return begin


@pytest.mark.parametrize(
    ("names", "overrides", "what", "value"),
    [
        ((), {"objective.mask_prob": 0.4}, "objective_options.mask_prob", "0.4"),
        (("teacher",), {}, "parents.teacher", r".*/teacher \(SHA-256 \w{12}…\)"),
        (("source",), {}, "parents.source", r".*/source \(SHA-256 \w{12}…\)"),
    ],
)
def test_an_option_that_one_command_lacks_is_named(
    names: tuple[str, ...],
    overrides: dict[str, Any],
    what: str,
    value: str,
    run: Run,
    stopped: Run,
    tmp_path: Path,
) -> None:
    stopped()
    begun = (tmp_path / "run/run.json").read_text()
    with pytest.raises(UsageError, match=f"{what} none, not {value};") as raised:
        run(*names, overrides=overrides, resume=True)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "run/run.json").read_text() == begun
    (tmp_path / "run").rename(tmp_path / "first")
    stopped(*names, overrides=overrides)
    with pytest.raises(UsageError, match=f"{what} {value}, not none;"):
        run(resume=True)


def test_another_command_data_or_teacher_is_refused(
    run: Run, stopped: Run, parents: dict[str, Path], shards: Path, sample: Path, tmp_path: Path
) -> None:
    stopped("teacher", objective=None)
    other = parents["source"]
    with pytest.raises(UsageError, match=rf"parents\.teacher .*, not {other} \(SHA-256 "):
        run(teacher=other, objective=None, resume=True)
    with pytest.raises(UsageError, match=r"parents\.teacher"):  # not the objective it implies
        run(objective=None, resume=True)
    with pytest.raises(UsageError, match=r"training\.steps 4, not 7;"):
        run("teacher", objective=None, steps=7, resume=True)
    firth.prepare([sample], tokenizer=shards, out=tmp_path / "shards", workers=1)
    with pytest.raises(UsageError, match=r" data\.shards .* \(SHA-256 \w{12}…\), not "):
        small(
            tmp_path / "shards",
            tmp_path / "run",
            teacher=parents["teacher"],
            objective=None,
            resume=True,
        )


def test_parents_may_move_and_the_first_command_is_kept(
    run: Run,
    stopped: Run,
    parents: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["firth", "pretrain"])
    stopped("teacher", "source")
    moved = {name: shutil.copytree(path, tmp_path / name) for name, path in parents.items()}
    monkeypatch.setattr(sys, "argv", ["firth", "pretrain", "--resume"])
    run(**moved, resume=True)
    values = read_run(tmp_path / "run")
    assert values["finished"]
    assert values["command"] == ["firth", "pretrain"]
    paths = {name: parent["path"] for name, parent in values["parents"].items()}
    assert paths == {name: str(path) for name, path in moved.items()}
    steps = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all("soft targets" in line for line in steps)


@pytest.mark.parametrize("version", ["older", "newer"])
def test_settings_of_other_versions_are_ignored(
    version: str, run: Run, stopped: Run, tmp_path: Path
) -> None:
    stopped()
    values = read_run(tmp_path / "run")
    for settings in (values["job"]["training"], values["job"]["training"]["optimizer"]):
        if version == "older":
            del settings[list(settings)[-1]]
        else:
            settings["new_field"] = 1
    (tmp_path / "run/run.json").write_text(json.dumps(values))
    assert run(resume=True).steps == 4


def test_a_run_of_another_kind_is_named(tmp_path: Path) -> None:
    common = {"command": [], "data": {}, "parents": {}, "versions": {"firth": "0"}}
    values = {"kind": "pretraining", "job": {"preset": "bert-tiny"}, **common}
    (tmp_path / "run.json").write_text(json.dumps(values))
    other = {"kind": "finetuning", "job": {"task": "tag"}, **common}
    with pytest.raises(UsageError, match="kind 'pretraining', not 'finetuning'"):
        check_run_directory(tmp_path, other, True)
    (tmp_path / "run.json").write_text(json.dumps(values | {"job": 3}))
    with pytest.raises(InputError, match=r"run\.json"):
        check_run_directory(tmp_path, values, True)
