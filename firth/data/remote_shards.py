"""Shards in an object store: tokens are read in blocks when they are needed, and kept on disk.

The index, the tokenizer and the offsets of documents are copied once. Of the tokens, blocks of
1 MiB are copied when a document in them is read; the least recently used ones are removed when all
blocks together exceed FIRTH_CACHE_GB gigabytes (default 20).
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firth.utils.errors import InputError, StorageError, UsageError, storage_errors
from firth.utils.files import atomic_file
from firth.utils.object_stores import cache_folder, download, file_state, is_url, read_bytes

logger = logging.getLogger("firth")

BLOCK_BYTES = 1 << 20
CACHE_GIGABYTES = "FIRTH_CACHE_GB"  # environment variable
URL_FILE = "url.txt"  # in a local copy: where the tokens are
TOKENS = ".tokens.npy"


def copy_index(url: str) -> Path:
    """Copy all of the shards but the tokens, unless there is a copy; return its directory."""
    url = url.rstrip("/")
    index = read_bytes(f"{url}/index.json")
    key = hashlib.sha256(url.encode() + b"\0" + index).hexdigest()[:32]
    folder = cache_folder() / "shards" / key
    if not folder.is_dir():
        with storage_errors(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
            try:
                download(url, temporary, without=TOKENS)
                (temporary / URL_FILE).write_text(url)
                os.rename(temporary, folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def shards_url(folder: Path) -> str | None:
    """Return where the tokens of a copied index are; None if they are in the folder."""
    path = folder / URL_FILE
    if not path.is_file():
        return None
    if not is_url(url := path.read_text(errors="replace")):
        raise InputError(f"{path} is not the URL of shards in an object store.")
    return url


class BlockCache:
    """Blocks of files of an object store, on disk up to a number of bytes."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._used: dict[Path, int] = {}  # when each block was used last
        self._time = 0
        self._has_warned = False  # that blocks cannot be written
        self._written = max_bytes  # bytes since the size was checked: at once for the first block

    def read(self, url: str, start: int, end: int, version: str = "") -> bytes:
        """Return a range of bytes of a file; `version` is another one after the file changed."""
        first, last = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        key = hashlib.sha256(f"{url}\0{version}".encode()).hexdigest()[:32]
        blocks = [
            self._block(url, self.folder / key / str(n), start, end) for n in range(first, last)
        ]
        found = b"".join(blocks)
        if len(found) != end - start:
            raise InputError(f"{url} is incomplete: it ends before byte {end}.")
        return found

    def _block(self, url: str, path: Path, start: int, end: int) -> bytes:
        """Return the part of a block that lies in a range; `path` ends with its number."""
        origin = int(path.name) * BLOCK_BYTES
        first, last = max(start - origin, 0), min(end - origin, BLOCK_BYTES)
        self._time += 1
        self._used[path] = self._time
        try:
            with open(path, "rb") as file:
                file.seek(first)
                return file.read(last - first)
        except FileNotFoundError:
            content = read_bytes(url, origin, origin + BLOCK_BYTES)
        self._write(path, content)
        return content[first:last]

    def _write(self, path: Path, content: bytes) -> None:
        """Keep a block, if its folder can be written."""
        try:
            with storage_errors(self.folder, full="Free some space, or set FIRTH_CACHE."):
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_file(path) as file:
                    file.write(content)
        except StorageError as error:
            if not self._has_warned:
                logger.warning(f"{error} Tokens are read again from the object store each time.")
            self._has_warned = True
            return
        self._written += len(content)
        if self._written > self.max_bytes // 16:
            self._shrink(keep=path)

    def _shrink(self, keep: Path) -> None:
        """Remove the least recently used blocks, down to 15/16 of the maximum."""
        self._written = 0
        rows = []
        for path in self.folder.glob("*/[!.]*"):  # not what another process is writing
            try:
                status = path.stat()
            except FileNotFoundError:  # removed by another process
                continue
            rows.append((self._used.get(path, 0), status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, _, size, _ in rows)
        for _, _, size, path in sorted(rows):
            if total <= self.max_bytes * 15 // 16:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                self._used.pop(path, None)
                total -= size


def block_cache() -> BlockCache:
    """Return the cache of this process in FIRTH_CACHE, of at most FIRTH_CACHE_GB gigabytes."""
    given = os.environ.get(CACHE_GIGABYTES) or "20"
    try:
        size = int(float(given) * 1e9)
    except ValueError as error:
        raise UsageError(f"{CACHE_GIGABYTES} must be a number, not {given!r}.") from error
    return _block_cache(cache_folder() / "blocks", max(size, 16 * BLOCK_BYTES))


_block_cache = cache(BlockCache)


class RemoteTokens:
    """An array of tokens in an object store, read like a memory-mapped one."""

    def __init__(self, url: str, size: int, checksum: str) -> None:
        """`size` is the number of tokens in the index, `checksum` that of the file.

        Blocks of an earlier file of this name, with another checksum, are not its own.
        """
        self.url = url
        self._read_bytes = partial(block_cache().read, url, version=checksum)
        head = self._read_bytes(0, 10)
        length = int.from_bytes(head[8:10], "little")
        try:
            if head[:6] != np.lib.format.MAGIC_PREFIX:
                raise ValueError("no NumPy array")
            described = io.BytesIO(self._read_bytes(8, 10 + length))
            shape, _, self.dtype = np.lib.format.read_array_header_1_0(described)
        except ValueError as error:
            raise InputError(f"{url} is damaged: {error}.") from error
        self._start, self._size = 10 + length, size
        expected, found = self._start + size * self.dtype.itemsize, file_state(url)[0]
        if shape != (size,) or found != expected:
            raise InputError(
                f"{url} is not the file of its index: it has {found:,} bytes and "
                f"{shape[0]:,} tokens, not {expected:,} and {size:,}; prepare the shards again."
            )

    def __len__(self) -> int:
        return int(self._size)

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return a slice, or the tokens at positions: runs of neighbours are read at once."""
        if isinstance(index, slice):
            start, end, _ = index.indices(len(self))
            return self._read(start, max(start, end))
        if not len(index):
            return np.empty(0, self.dtype)
        breaks = np.flatnonzero(np.diff(index) != 1) + 1
        starts = index[np.concatenate(([0], breaks))]
        lengths = np.diff(np.concatenate(([0], breaks, [len(index)])))
        pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
        return np.concatenate([self._read(start, start + length) for start, length in pairs])

    def _read(self, start: int, end: int) -> NDArray[Any]:
        size = self.dtype.itemsize
        data = self._read_bytes(self._start + start * size, self._start + end * size)
        return np.frombuffer(data, self.dtype)
