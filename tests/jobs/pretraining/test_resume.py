"""A run goes on as the one it was begun as, or not at all."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.jobs.pretraining import PretrainResult, pretrain
from firth.objectives.batch import Batch
from firth.training.loop import Callbacks
from firth.training.run_directory import check_run_directory, read_metrics, read_run
from firth.utils.errors import InputError, UsageError
from tests.training.conftest import SMALL

Run = Callable[..., PretrainResult]


class Killed(Exception):
    """As if the power had gone."""


def kill(step: int, part: Batch) -> None:
    if step == 2:
        raise Killed


def small(shards: Path, out: Path, **options: Any) -> PretrainResult:
    overrides = SMALL | {"model.num_layers": 2, "log_every": 1} | options.pop("overrides", {})
    given = {"preset": "bert-tiny", "objective": "masked", "steps": 4} | options
    return pretrain(data=shards, out=out, overrides=overrides, **given)


@pytest.fixture(scope="module")
def parents(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model to go on from, and one to learn from."""
    folder = tmp_path_factory.mktemp("parents")
    small(shards, folder / "source", steps=1)
    small(shards, folder / "teacher", steps=1, overrides={"model.num_layers": 4})
    return {name: folder / name for name in ("source", "teacher")}


@pytest.fixture
def run(shards: Path, tmp_path: Path, parents: dict[str, Path]) -> Run:
    """A run in the same place, with parents by their names."""

    def pretrained(*names: str, **options: Any) -> PretrainResult:
        return small(shards, tmp_path / "run", **{n: parents[n] for n in names}, **options)

    return pretrained


@pytest.fixture
def stopped(run: Run) -> Run:
    """Begin a run that is killed at its second step."""

    def begin(*names: str, **options: Any) -> None:
        with pytest.raises(Killed):
            run(*names, callbacks=Callbacks(before_micro_batch=kill), **options)

    return begin


@pytest.mark.parametrize("way", ["added", "left out"])
@pytest.mark.parametrize(
    ("names", "overrides", "what", "value"),
    [
        ((), {"objective.mask_prob": 0.4}, "objective_options.mask_prob", "0.4"),
        (("teacher",), {}, "parents.teacher", r".*/teacher \(SHA-256 \w{12}…\)"),
        (("source",), {}, "parents.source", r".*/source \(SHA-256 \w{12}…\)"),
    ],
)
def test_what_one_command_has_alone_is_named(
    names: tuple[str, ...],
    overrides: dict[str, Any],
    what: str,
    value: str,
    way: str,
    run: Run,
    stopped: Run,
    tmp_path: Path,
) -> None:
    if way == "added":
        stopped()
        sentence = f"{what} none, not {value};"
    else:
        stopped(*names, overrides=overrides)
        sentence = f"{what} {value}, not none;"
    begun = (tmp_path / "run/run.json").read_text()
    with pytest.raises(UsageError, match=sentence) as raised:
        if way == "added":
            run(*names, overrides=overrides, resume=True)
        else:
            run(resume=True)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "run/run.json").read_text() == begun


def test_what_follows_from_a_teacher_is_not_what_is_named(run: Run, stopped: Run) -> None:
    """Without one, the preset has another objective."""
    stopped("teacher", objective=None)
    with pytest.raises(UsageError, match=r"parents\.teacher"):
        run(objective=None, resume=True)


def test_another_teacher_is_refused(run: Run, stopped: Run, parents: dict[str, Path]) -> None:
    stopped("teacher")
    other = parents["source"]
    with pytest.raises(UsageError, match=rf"parents\.teacher .*, not {other} \(SHA-256 "):
        run(teacher=other, resume=True)


def test_parents_may_move(run: Run, stopped: Run, parents: dict[str, Path], tmp_path: Path) -> None:
    stopped("teacher", "source")
    moved = {name: shutil.copytree(path, tmp_path / name) for name, path in parents.items()}
    run(**moved, resume=True)
    values = read_run(tmp_path / "run")
    assert values["finished"]
    assert {name: parent["path"] for name, parent in values["parents"].items()} == {
        name: str(path) for name, path in moved.items()
    }
    steps = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all("soft targets" in line for line in steps)


def test_the_first_command_is_kept(
    run: Run, stopped: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["firth", "pretrain"])
    stopped()
    monkeypatch.setattr(sys, "argv", ["firth", "pretrain", "--resume"])
    run(resume=True)
    values = read_run(tmp_path / "run")
    assert values["finished"]
    assert values["command"] == ["firth", "pretrain"]


@pytest.mark.parametrize("version", ["older", "newer"])
def test_settings_that_another_version_had_are_no_difference(
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
    common = {"command": [], "data": {}, "parents": {}}
    values = {"kind": "pretraining", "job": {"preset": "bert-tiny"}, **common}
    (tmp_path / "run.json").write_text(json.dumps(values))
    with pytest.raises(UsageError, match="kind 'pretraining', not 'finetuning'"):
        check_run_directory(
            tmp_path, {"kind": "finetuning", "job": {"task": "tag"}, **common}, True
        )
    (tmp_path / "run.json").write_text(json.dumps(values | {"job": 3}))
    with pytest.raises(InputError, match=r"run\.json"):
        check_run_directory(tmp_path, values, True)
