"""Compressed files: a decompressor for each file extension."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Callable
from typing import BinaryIO, cast


def _zstandard(stream: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(stream, "zstd"), 1 << 20))


COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    "": lambda stream: stream,
    ".gz": lambda stream: cast(BinaryIO, gzip.GzipFile(fileobj=stream)),
    ".bz2": lambda stream: cast(BinaryIO, bz2.BZ2File(stream)),
    ".xz": lambda stream: cast(BinaryIO, lzma.LZMAFile(stream)),
    ".zst": _zstandard,
}
