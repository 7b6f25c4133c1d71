"""Files that are either there whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from firth.errors import FirthError

UNSEALED = b"0" * 64  # the place that `seal` puts a sum into


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name only once it is complete and on the disk.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.txt")
    >>> with atomic_file(path) as file:
    ...     _ = file.write(b"firth")
    ...     path.exists()
    False
    >>> path.read_text()
    'firth'
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def growing_file(path: Path) -> Iterator[Callable[[str], None]]:
    """A file that grows line by line under NAME.part, and gets its name once it is complete.

    Whatever ends it before, what was written stays in NAME.part, in whole lines.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.jsonl")
    >>> with growing_file(path) as write:
    ...     write("1")
    ...     path.exists(), part_of(path).read_text()
    (False, '1\\n')
    >>> path.read_text(), part_of(path).exists()
    ('1\\n', False)
    """
    part, end = part_of(path), 0
    part.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb", buffering=0) as file:

        def write(line: str) -> None:
            nonlocal end
            data = memoryview(f"{line}\n".encode())
            size = len(data)
            while data:
                data = data[file.write(data) :]
            end += size

        try:
            yield write
        except BaseException:
            file.truncate(end)
            if not end:
                part.unlink(missing_ok=True)
            raise
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(path.parent)


def part_of(path: Path) -> Path:
    """Where a file that grows stands until it is complete."""
    return path.with_name(f"{path.name}.part")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as `.npy`, whole or not at all.

    (`np.save` writes behind Python's back and does not say that a disk is full.)
    """
    array = np.ascontiguousarray(array)
    with atomic_file(path) as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, whole or not at all."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if any(
        "\ud800" <= character <= "\udfff" for character in text
    ):  # a file name that is not UTF-8
        text = json.dumps(value, indent=2)
    with atomic_file(path) as file:
        file.write(f"{text}\n".encode())


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Do something that one process alone may do; `what` says it, as in "writing FOLDER".

    The lock is on the file at `path`, and the operating system takes it back when the process
    ends, in whatever way it ends.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.lock")
    >>> with locked(path, "writing words"), locked(path, "writing words"):
    ...     pass
    Traceback (most recent call last):
    firth.errors.FirthError: Another process is writing words; wait for it.
    """
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FirthError(f"Another process is {what}; wait for it.") from error
        yield


def sync_directory(path: Path) -> None:
    """Make renames inside a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 sum of a file, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(data: bytes) -> bytes:
    """Put the SHA-256 sum of some data into the data, in place of the first 64 zeros.

    >>> seal(b"sum " + b"0" * 64 + b" of this")[:20]
    b'sum b9c075b1fe5cca68'
    """
    return data.replace(UNSEALED, hashlib.sha256(data).hexdigest().encode(), 1)


def is_sealed(data: bytes, total: str) -> bool:
    """Whether data that holds this sum is what `seal` gave, to the last bit.

    >>> is_sealed(seal(b"0" * 64), hashlib.sha256(b"0" * 64).hexdigest())
    True
    """
    unsealed = data.replace(total.encode(), UNSEALED, 1)
    return hashlib.sha256(unsealed).hexdigest() == total
