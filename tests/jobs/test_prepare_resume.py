"""`prepare` resumes: killed, damaged or without space, it ends with the same shards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firth.data.shards import Shards, write_shard
from firth.jobs.preparation import prepare
from tests.conftest import in_process
from tests.jobs.conftest import sums


@pytest.mark.slow
@pytest.mark.nightly
def test_any_number_of_workers_writes_the_same(tmp_path: Path, long_text: Path, bert: Path) -> None:
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        prepare([long_text], tokenizer=bert, out=out, workers=workers, dedup=True)
    assert sums(tmp_path / "1") == sums(tmp_path / "2") == sums(tmp_path / "3")


def command(long_text: Path, bert: Path, out: Path) -> list[str]:
    options = ["--tokenizer", bert, "--out", out, "--shard-tokens", "20000", "--dedup"]
    return [sys.executable, "-m", "firth", "prepare", *map(str, [long_text, *options])]


@pytest.fixture(scope="module")
def whole(long_text: Path, bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of a run that was never stopped."""
    out = tmp_path_factory.mktemp("whole") / "shards"
    prepare([long_text], tokenizer=bert, out=out, shard_tokens=20_000, dedup=True, workers=1)
    return out


# Kill the process when it calls a function of the module for the n-th time (from 0).
KILLED = """
import os, signal, sys
from firth.jobs import preparation, prepare_output
name, number, text, tokenizer, out = sys.argv[1:]
module = preparation if name == "find_duplicates" else prepare_output
function, calls = getattr(module, name), iter(range(1000))
def dying(*arguments):
    if next(calls) == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)
setattr(module, name, dying)
preparation.prepare([text], tokenizer=tokenizer, out=out, shard_tokens=20_000, dedup=True)
"""


@pytest.mark.nightly
def test_killed_and_started_again_it_writes_the_same(
    tmp_path: Path, long_text: Path, bert: Path, whole: Path
) -> None:
    """Killed among the duplicates, in and after a shard, and after the final rename."""
    out = tmp_path / "killed"
    for place in ("find_duplicates 0", "write_shard 1", "write_json 2", "sync_directory 0"):
        words = [sys.executable, "-c", KILLED, *place.split(), *map(str, (long_text, bert, out))]
        assert subprocess.run(words).returncode == -signal.SIGKILL
        assert out.exists() == place.startswith("sync")
    assert sums(out) == sums(whole)
    subprocess.run(command(long_text, bert, out), check=True, capture_output=True)
    assert sums(out) == sums(whole)
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.iterdir()}
    assert not Path(f"{out}.partial").exists()


def test_it_resumes_after_the_last_complete_shard(
    tmp_path: Path, long_text: Path, bert: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"

    def interrupted(folder: Path, name: str, passages: Any) -> Any:
        if name == "train-00001":
            raise KeyboardInterrupt
        return write_shard(folder, name, passages)

    words = [*command(long_text, bert, out)[3:], "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr("firth.jobs.prepare_output.write_shard", interrupted)
        stopped = in_process(*words)
    assert (stopped.returncode, stopped.error.startswith("Interrupted")) == (130, True)
    assert not out.exists()
    before = (partial / "train-00000.tokens.npy").stat().st_mtime_ns
    assert in_process(*words, "--json").json["resumed"] is True
    assert (out / "train-00000.tokens.npy").stat().st_mtime_ns == before
    assert sums(out) == sums(whole)


def test_a_damaged_shard_of_an_interrupted_run_is_made_again(
    tmp_path: Path, long_text: Path, bert: Path, whole: Path
) -> None:
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    shutil.copytree(whole, out)
    expected = sums(out)
    # As if it had been killed at the end, and the disk had lost a block since.
    index = json.loads((out / "index.json").read_bytes())
    shards = {split: index["splits"][split]["shards"] for split in ("train", "valid")}
    os.rename(out, partial)
    journal = {"plan": index["plan"], "part": 1, "position": [0, 0], "documents": 2000}
    journal |= {"shards": shards, "report": index["report"]}
    (partial / "journal.json").write_text(json.dumps(journal))
    victim = partial / "train-00000.tokens.npy"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    assert in_process(*command(long_text, bert, out)[3:]).returncode == 0
    assert sums(out) == expected
    Shards(out).verify()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """A disk that is full after a shard or two."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(tmp_path: Path, long_text: Path, bert: Path, tiny_disk: Path) -> None:
    out = tiny_disk / "shards"
    words = [*command(long_text, bert, out)[3:-1], "--workers", "1"]
    failed = in_process(*words)
    assert failed.returncode == 1
    assert failed.error.startswith("The disk is full:")
    assert "the same command resumes from there" in failed.error
    assert not out.exists()
    early = in_process(*command(long_text, bert, tiny_disk / "other")[3:-1], "--workers", "1")
    assert early.error.startswith("The disk is full:")
    assert "resumes" not in early.error  # no shard was finished
    # Space returns, and the same command goes on.
    enlarge = ["mount", "-o", "remount,size=20m", str(tiny_disk)]
    subprocess.run(enlarge, check=True)
    assert in_process(*words, "--json").json["resumed"] is True
    prepare([long_text], tokenizer=bert, out=tmp_path / "w", shard_tokens=20_000, workers=1)
    assert sums(out) == sums(tmp_path / "w")


def test_a_full_disk_under_a_tokenizer(sample: Path, tiny_disk: Path) -> None:
    (tiny_disk / "filler").write_bytes(bytes(1 << 18))
    options = ["--kind", "bpe", "--vocab-size", "500", "--out", str(tiny_disk / "bpe")]
    failed = in_process("tokenizer", "train", sample, *options)
    assert failed.returncode == 1
    assert failed.error.startswith("The disk is full:")
    assert not (tiny_disk / "bpe/tokenizer.json").exists()
