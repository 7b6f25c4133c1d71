"""Checkpoints: whole ones only, whatever happens to the process or the disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from firth.formats.safetensors import write_weights
from firth.training.checkpoint import Checkpoint, Checkpoints
from firth.utils.errors import InputError, StorageError, UsageError


def at(step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a run might hold after a step."""
    tensors = {"weight": torch.full((8, 8), float(step)), "moment": torch.full((8,), -float(step))}
    return tensors, {"loss": 1 / step, "order": [step, {"ƙ": None}], "run": "x"}


def saved(directory: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(directory, keep)
    for step in steps:
        assert checkpoints.save(step, *at(step)) == directory / f"step-{step}"
    return checkpoints


def is_whole(checkpoint: Checkpoint | None, step: int) -> bool:
    tensors, state = at(step)
    return (
        checkpoint is not None
        and checkpoint.step == step
        and checkpoint.state == state
        and set(checkpoint.weights) == set(tensors)
        and all(torch.equal(checkpoint.weights[name], tensors[name]) for name in tensors)
    )


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.newest() is None
    for step in (8, 9, 10, 11, 100):
        checkpoints.save(step, *at(step))
        notes: list[str] = []
        assert is_whole(checkpoints.newest(notes), step)
        assert notes == []
    assert names(checkpoints.directory) == {"step-11", "step-100"}
    assert names(checkpoints.directory / "step-100") == {"tensors.safetensors", "state.json"}
    assert names(saved(tmp_path / "one", 1, 2, 3, keep=1).directory) == {"step-3"}
    with pytest.raises(UsageError, match=r"keep_checkpoints .*0"):
        Checkpoints(tmp_path, keep=0)


def test_a_damaged_later_step_does_not_replace_the_one_just_saved(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 50, keep=1)
    flip(tmp_path / "step-50/tensors.safetensors", 4000)
    checkpoints.save(2, *at(2))
    assert is_whole(checkpoints.newest(), 2)
    checkpoints.save(51, *at(51))
    assert names(tmp_path) == {"step-51"}


def test_other_files_in_the_directory_are_kept(tmp_path: Path) -> None:
    for name in ("step-7.txt", "step-x", ".step-1.partial", "metrics.jsonl", ".step-1.2.other"):
        (tmp_path / name).mkdir()
    others = names(tmp_path)
    checkpoints = saved(tmp_path, 1, 2, 3)
    assert names(tmp_path) == others | {"step-2", "step-3"}
    assert is_whole(checkpoints.newest(), 3)


def test_a_step_is_replaced(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    old = checkpoints.newest()
    checkpoints.save(2, {"other": torch.zeros(3)}, {"again": True})
    new = checkpoints.newest()
    assert new is not None
    assert new.state == {"again": True}
    assert list(new.weights) == ["other"]
    assert names(tmp_path) == {"step-1", "step-2"}
    assert is_whole(old, 2)  # its memory-mapped tensors are unchanged


def test_a_process_that_died_while_replacing_loses_nothing(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    replaced = tmp_path / f".step-2.{dead_process()}.replaced"
    os.rename(tmp_path / "step-2", replaced)  # killed here
    assert is_whole(checkpoints.newest(), 2)
    checkpoints.save(3, *at(3))
    assert names(tmp_path) == {"step-2", "step-3"}
    assert is_whole(checkpoints.newest(), 3)
    shutil.copytree(tmp_path / "step-3", replaced.with_name(f".step-3.{dead_process()}.replaced"))
    assert is_whole(checkpoints.newest(), 3)
    checkpoints.save(4, *at(4))
    assert names(tmp_path) == {"step-3", "step-4"}


def test_partial_checkpoints_of_dead_processes_are_removed(
    tmp_path: Path,
) -> None:
    checkpoints = saved(tmp_path, 1)
    dead, living, own = (
        tmp_path / f".step-2.{pid}.partial" for pid in (dead_process(), os.getppid(), os.getpid())
    )
    for path in (dead, living, own):
        shutil.copytree(tmp_path / "step-1", path)
    assert is_whole(checkpoints.newest(), 1)
    checkpoints.save(2, *at(2))
    assert names(tmp_path) == {"step-1", "step-2", living.name}


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_one_flipped_bit_is_detected(tmp_path: Path, file: str) -> None:
    checkpoints = saved(tmp_path, 9, 10)
    victim = tmp_path / "step-10" / file
    whole = victim.read_bytes()
    draw = random.Random(0)
    for bit in draw.sample(range(8 * len(whole)), 300):
        flip(victim, bit)
        notes: list[str] = []
        assert is_whole(checkpoints.newest(notes), 9)
        assert len(notes) == 1
        assert all(part in notes[0] for part in ("step-9", "step-10", str(tmp_path)))
        victim.write_bytes(whole)
    assert is_whole(checkpoints.newest(), 10)


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_truncated_checkpoint_is_skipped(tmp_path: Path, file: str) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    victim = tmp_path / "step-3" / file
    whole = victim.read_bytes()
    for length in range(0, len(whole), 7):
        victim.write_bytes(whole[:length])
        assert is_whole(checkpoints.newest(), 2)
    victim.unlink()
    assert is_whole(checkpoints.newest(), 2)
    shutil.rmtree(tmp_path / "step-2")
    (tmp_path / "step-2").write_text("not a directory")
    notes: list[str] = []
    assert is_whole(checkpoints.newest(notes), 1)
    assert len(notes) == 1
    assert "step-3 and step-2" in notes[0]
    assert str(tmp_path) in notes[0]


@pytest.mark.parametrize("rows", [(0,), (0, 5)])
def test_rows_of_divided_weights_are_joined(tmp_path: Path, rows: tuple[int, ...]) -> None:
    checkpoints, whole = Checkpoints(tmp_path, keep=2), torch.arange(16.0).view(8, 2)
    partial, sums, ends = checkpoints.begin(1), {}, (*rows[1:], 8)
    for rank, (begin, end) in enumerate(zip(rows, ends, strict=True)):
        name = f"tensors-{rank}-of-{len(rows)}.safetensors"
        sums[name] = write_weights(partial / name, {f"weight@{begin}": whole[begin:end]})
    checkpoints.complete(1, partial, sums, {})
    found = checkpoints.newest()
    assert found is not None
    assert list(found.weights) == ["weight"]
    assert torch.equal(found.weights["weight"], whole)


def test_files_of_two_checkpoints_do_not_mix(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, keep=3)
    shutil.copy(tmp_path / "step-2/tensors.safetensors", tmp_path / "step-3/tensors.safetensors")
    assert is_whole(checkpoints.newest(), 2)
    shutil.rmtree(tmp_path / "step-3")
    os.rename(tmp_path / "step-2", tmp_path / "step-4")  # not what it says inside
    assert is_whole(checkpoints.newest(), 1)
    for text in ("[]", "1", '{"sha256": 1}', '{"sha256": ""}', "[" * 100_000):
        (tmp_path / "step-4/state.json").write_text(text)
        assert is_whole(checkpoints.newest(), 1)


def test_damaged_checkpoints_alone_are_an_error(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "step-1/state.json").unlink()
    flip(tmp_path / "step-2/tensors.safetensors", 3000)
    with pytest.raises(InputError, match=rf"{tmp_path}.*step-2 and step-1"):
        checkpoints.newest()


def test_a_failed_save_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1)
    with pytest.raises(TypeError):
        checkpoints.save(2, at(2)[0], {"not JSON": object()})
    assert names(tmp_path) == {"step-1"}
    assert is_whole(checkpoints.newest(), 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=f"{tmp_path}/file cannot be written"):
        Checkpoints(tmp_path / "file").save(1, *at(1))


def test_a_full_disk(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with pytest.raises(StorageError, match="There is no earlier checkpoint"):
            Checkpoints(place).save(1, {"large": torch.zeros(500_000)}, {})
        checkpoints = saved(place, 1, 2)
        for size in (2_000_000, 1_000_000 - 30_000):  # full in the middle, and near the end
            with pytest.raises(StorageError, match=f"disk is full: {place} .* are intact"):
                checkpoints.save(
                    3, {"large": torch.zeros(size, dtype=torch.uint8)}, {"x": "y" * 100_000}
                )
            assert names(place) == {"step-1", "step-2"}
            assert is_whole(checkpoints.newest(), 2)
        subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
        checkpoints.save(3, {"large": torch.ones(2_000_000, dtype=torch.uint8)}, {})
        newest = checkpoints.newest()
        assert newest is not None
        assert newest.weights["large"].all()
        del newest
    finally:
        subprocess.run(["umount", str(place)], check=True)


KILLING = """
import json, os, sys
from pathlib import Path
import torch
from firth.training.checkpoint import Checkpoints

CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}  # of the file system
checkpoints = Checkpoints(Path(sys.argv[1]))
checkpoints.directory.mkdir()

def save(step, version):
    weights = {name: torch.full((50,), float(version)) for name in "abc"}
    checkpoints.save(step, weights, {"version": version})

def die_before(change):
    def hook(event, arguments, seen=[]):
        if event in CHANGES:
            seen.append(event)
            if len(seen) > change:
                os._exit(9)
    sys.addaudithook(hook)

before, killed, left = (0, 0), 0, set()
while True:
    child = os.fork()
    if not child:
        die_before(killed)
        for version in (1, 2):  # a new checkpoint, and one in place of what is there
            save(before[0] + 1, before[1] + version)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
    killed += 1
    left |= {path.suffix for path in checkpoints.directory.iterdir() if path.suffix}
    notes = []
    newest = checkpoints.newest(notes)
    if newest is None:
        assert before == (0, 0)
        continue
    version = newest.state["version"]
    assert not notes, notes
    assert sorted(newest.weights) == ["a", "b", "c"]
    assert all(tensor.eq(version).all() for tensor in newest.weights.values())
    assert (newest.step, version) >= before, (newest.step, version, before)
    before = (newest.step, version)
print(json.dumps([killed, sorted(left), len(list(checkpoints.directory.iterdir()))]))
"""


@pytest.mark.slow
def test_killed_before_any_change_of_the_disk_the_newest_is_intact(tmp_path: Path) -> None:
    """One process dies before its first change of the disk, the next before its second, …"""
    command = [sys.executable, "-c", KILLING, str(tmp_path / "checkpoints")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    killed, left, files = json.loads(done.stdout)
    assert killed > 20
    assert left == [".partial", ".replaced"]
    assert files == 2


def test_a_resumed_run_knows_which_micro_batch_was_too_large(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    with pytest.raises(StorageError):  # there is no folder yet, as after a full disk
        checkpoints.limit_micro_batch(64)
    assert checkpoints.micro_batch_limit() == 0
    checkpoints.save(0, {"bias": torch.zeros(2)}, {})
    checkpoints.limit_micro_batch(64)
    checkpoints.save(1, {"bias": torch.zeros(2)}, {})
    assert checkpoints.micro_batch_limit() == 64
