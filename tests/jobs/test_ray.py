"""Ray: the same bytes as one process, however often a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from firth.data import corpus_parts
from firth.jobs import ray_preparation
from firth.jobs.preparation import prepare
from firth.tokenizers.trainer import train_tokenizer
from firth.utils.errors import FirthError, InputError
from firth.utils.ray_tasks import RayTasks
from tests.conftest import in_process
from tests.jobs.test_prepare_parts import contents


class FakeRay:
    """The functions of Ray that `RayTasks` uses, in this process."""

    class RayError(Exception):
        """An error of a task."""

        def __init__(self, cause: Exception) -> None:
            super().__init__(str(cause))
            self.cause = cause

    exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, function: Callable[..., Any]) -> Any:
        submit = lambda *arguments: lambda: function(*arguments)  # noqa: E731
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=submit))

    def put(self, value: Any) -> Any:
        return value

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference: Callable[[], Any]) -> Any:
        try:
            return reference()
        except Exception as error:
            raise self.RayError(error) from error


def test_a_task_is_repeated_and_named_when_it_fails_three_times() -> None:
    calls: list[int] = []

    def square(number: int) -> int:
        calls.append(number)
        if number == 3 or (number == 2 and calls.count(2) < 3):
            raise OSError("no answer")
        if number == 4:
            raise InputError("a.txt is damaged.")
        return number**2

    run = RayTasks(FakeRay())
    assert run(square, [1, 2]) == [1, 4]
    assert calls.count(2) == 3
    made: list[int] = []
    with pytest.raises(FirthError, match=r"\b3\b.*no answer"):
        made += [result for _, result in run.as_completed(square, [0, 3, 1])]
    assert sorted(made or [0, 1]) == [0, 1]
    assert calls.count(3) == 3
    with pytest.raises(InputError, match=r"\b4\b.*damaged"):
        run(square, [4, 1])
    assert calls.count(4) == 1  # it would fail again


def test_ray_is_optional(
    tmp_path: Path, sample: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["prepare", sample, "--tokenizer", bert, "--out", tmp_path / "out"]
    failed = in_process(*words, "--engine", "ray")
    assert failed.returncode == 2
    assert "firth[ray]" in failed.error
    assert in_process(*words, "--engine", "spark").returncode == 2
    assert in_process(*words, "--parts", "3").returncode == 2
    assert in_process(*words, "--engine", "ray", "--merge").returncode == 2


def test_parts_of_an_interrupted_run_are_continued_with_their_number(
    tmp_path: Path, sample: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def in_this_process() -> Iterator[RayTasks]:
        yield RayTasks(FakeRay())

    monkeypatch.setattr(ray_preparation, "ray_tasks", in_this_process)
    monkeypatch.setitem(sys.modules, "ray", FakeRay())
    words = ["prepare", sample, "--tokenizer", bert, "--out", tmp_path / "out"]
    assert in_process(*words, "--part", "1/3").returncode == 0
    refused = in_process(*words, "--engine", "ray", "--parts", "2")
    assert refused.returncode == 2
    assert "3 parts" in refused.error
    assert "not 2" in refused.error
    done = in_process(*words, "--engine", "ray")
    assert done.returncode == 0
    assert "interrupted run" in done.stdout
    assert json.loads((tmp_path / "out/index.json").read_text())["splits"]


# ---- a real cluster ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Any:
    """A Ray cluster on this machine with two cores."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: make references")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_ray_writes_the_same(tmp_path: Path, long_text: Path, bert: Path, cluster: Any) -> None:
    options: Any = {"tokenizer": bert, "shard_tokens": 60_000, "dedup": True}
    prepare([long_text], out=tmp_path / "whole", workers=1, **options)
    prepare([long_text], out=tmp_path / "out", engine="ray", parts=5, **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_ray_counts_the_same_words(
    tmp_path: Path, long_text: Path, sample: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_parts, "PART_BYTES", 1 << 19)
    sources = {"en": long_text, "ha": sample}
    options: Any = {"kind": "wordpiece", "vocab_size": 500, "mixture_alpha": 0.3}
    local, local_report = train_tokenizer(sources, workers=1, **options)
    made, report = train_tokenizer(sources, engine="ray", **options)
    assert made.to_json() == local.to_json()
    assert report == local_report


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_a_failed_part_is_named_and_the_others_are_kept(
    tmp_path: Path, long_text: Path, bert: Path, cluster: Any
) -> None:
    options: Any = {"tokenizer": bert, "engine": "ray", "parts": 3}
    out, folder = tmp_path / "out", tmp_path / "out.parts"
    obstacle = folder / ".shards-00002-of-00003.lock"
    obstacle.mkdir(parents=True)  # in place of a file
    with pytest.raises(FirthError, match="2/3"):
        prepare([long_text], out=out, **options)
    kept = folder / "shards-00001-of-00003"
    assert kept.is_dir()
    assert not (folder / "shards-00002-of-00003").exists()
    obstacle.rmdir()
    prepare([long_text], out=out, **options)
    prepare([long_text], tokenizer=bert, out=tmp_path / "whole", workers=1)
    assert contents(out) == contents(tmp_path / "whole")


def _workers(parent: int) -> list[int]:
    """The worker processes of Ray below a process that are at a task."""
    parents, tasks = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::_run_task"):
                tasks.append(int(folder.name))
        except OSError:  # it has ended
            continue

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != parent:
            pid = parents.get(pid, 0)
        return pid == parent

    return [pid for pid in tasks if is_below(pid)]


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_a_worker_is_killed_in_the_middle(tmp_path: Path, long_text: Path, bert: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: make references")
    prepare([long_text], tokenizer=bert, out=tmp_path / "whole", workers=1, shard_tokens=60_000)
    words = ["prepare", long_text, "--tokenizer", bert, "--out", tmp_path / "out"]
    words += ["--shard-tokens", 60_000, "--engine", "ray", "--parts", 4]
    command = [sys.executable, "-m", "firth", *map(str, words)]
    killed: set[int] = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and len(killed) < 2:
            begun = list((tmp_path / "out.parts").glob(".shards-*.tmp"))
            for pid in _workers(process.pid) if begun else []:
                if pid not in killed and len(killed) < 2:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            time.sleep(0.05)
        _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error.decode()
    assert len(killed) == 2
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
