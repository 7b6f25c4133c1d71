"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from firth.files import atomic_file, sha256, write_array, write_json


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"ɓ": 1})
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"ɓ": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64, np.uint8])
def test_arrays_are_what_numpy_reads(tmp_path: Path, dtype: type) -> None:
    array = np.arange(1000).astype(dtype)
    write_array(tmp_path / "a.npy", array[::3])
    loaded = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded, array[::3])


def test_sums_are_hashlibs(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"firth" * 100_000)
    assert sha256(tmp_path / "a") == hashlib.sha256(b"firth" * 100_000).hexdigest()
