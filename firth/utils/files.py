"""Atomic file writes, file locks and checksums."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from firth.utils.errors import FirthError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

CHECKSUM_PLACEHOLDER = b"0" * 64  # replaced by `embed_checksum`


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name only when it is complete and synced to disk.

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
    """Write lines to NAME.part, which is renamed to NAME when complete.

    After an error, NAME.part holds the lines written so far, never a partial line.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.jsonl")
    >>> with growing_file(path) as write:
    ...     write("1")
    ...     path.exists(), partial_path(path).read_text()
    (False, '1\\n')
    >>> path.read_text(), partial_path(path).exists()
    ('1\\n', False)
    """
    part, end = partial_path(path), 0
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


def partial_path(path: Path) -> Path:
    """Return the name of a file while it is being written."""
    return path.with_name(f"{path.name}.part")


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array as `.npy`, atomically.

    (`np.save` bypasses Python's file objects and does not report a full disk.)
    """
    array = np.ascontiguousarray(array)
    with atomic_file(path) as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(value, indent=2)  # surrogates: a file name that is not UTF-8
    with atomic_file(path) as file:
        file.write(f"{text}\n".encode())


@contextmanager
def locked(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path`, or raise `FirthError` if another process does.

    `what` describes the locked action in the error, such as "writing FOLDER"; with `wait`, there is
    no error. The operating system releases the lock when the process ends, however it ends.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.lock")
    >>> with locked(path, "writing words"), locked(path, "writing words"):
    ...     pass
    Traceback (most recent call last):
    firth.utils.errors.FirthError: Another process is writing words; wait for it.
    """
    with open(path, "w") as lock:
        try:
            _lock(lock, wait)
        except (BlockingIOError, PermissionError) as error:
            raise FirthError(f"Another process is {what}; wait for it.") from error
        yield


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock on the file at `path`.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.lock")
    >>> with locked(path, "writing words"):
    ...     is_locked(path)
    True
    >>> is_locked(path)
    False
    """
    try:
        lock = open(path)
    except OSError:  # there is none
        return False
    with lock:
        try:
            _lock(lock, wait=False)
        except (BlockingIOError, PermissionError):
            return True
    return False


def _lock(file: IO[str], wait: bool) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    else:
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that renames in it survive a power failure; no effect on Windows."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Compute the SHA-256 checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def embed_checksum(data: bytes) -> bytes:
    """Replace the first 64 zeros in the data by the SHA-256 checksum of the data.

    >>> embed_checksum(b"sum " + b"0" * 64 + b" of this")[:20]
    b'sum b9c075b1fe5cca68'
    """
    return data.replace(CHECKSUM_PLACEHOLDER, hashlib.sha256(data).hexdigest().encode(), 1)


def checksum_matches(data: bytes, checksum: str) -> bool:
    """Check data with an embedded checksum, as `embed_checksum` returned it.

    >>> checksum_matches(embed_checksum(b"0" * 64), hashlib.sha256(b"0" * 64).hexdigest())
    True
    """
    original = data.replace(checksum.encode(), CHECKSUM_PLACEHOLDER, 1)
    return hashlib.sha256(original).hexdigest() == checksum
