"""Atomic files, arrays, checksums and locks."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from firth.utils.errors import FirthError
from firth.utils.files import (
    CHECKSUM_PLACEHOLDER,
    atomic_file,
    checksum_matches,
    embed_checksum,
    locked,
    sha256,
    write_array,
    write_json,
)


def test_failed_writes_keep_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ɓ": 1})
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"ɓ": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64, np.uint8])
def test_arrays_are_numpy_files(tmp_path: Path, dtype: type) -> None:
    array = np.arange(1000).astype(dtype)
    write_array(tmp_path / "a.npy", array[::3])
    loaded = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded, array[::3])


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"firth" * 100_000)
    assert sha256(tmp_path / "a") == hashlib.sha256(b"firth" * 100_000).hexdigest()


def test_locks_exclude_other_processes_and_end_with_theirs(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    hold = (
        "import sys, pathlib; from firth.utils.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), 'training here'):\n"
        "    print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", hold, str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FirthError) as refused, locked(path, "training here"):
            pass
        assert "process is training here" in str(refused.value)
        holder.kill()
        holder.wait()
    with locked(path, "training here"):
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 1
        assert "process is training here" in second.stderr
    with locked(path, "training here"):
        pass


def test_embedded_checksums_detect_any_flipped_bit() -> None:
    content = b'{"sum": "' + CHECKSUM_PLACEHOLDER + b'", "zeros": "' + CHECKSUM_PLACEHOLDER + b'"}'
    total = hashlib.sha256(content).hexdigest()
    checked = embed_checksum(content)
    assert json.loads(checked) == {"sum": total, "zeros": "0" * 64}
    assert checksum_matches(checked, total)
    for bit in range(8 * len(checked)):
        flipped = bytearray(checked)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not checksum_matches(bytes(flipped), total)
