"""Word vectors of NumPy: `.npz` with words and vectors, or `.npy` with a file of words beside it.

No array is unpickled. The size in an array's header is compared with that of the file before memory
is allocated.

V  words     W  numbers of a vector
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from firth.formats.word_vectors.word_vectors import (
    MAX_BYTES,
    Matrix,
    VectorCollector,
    WordVectors,
)
from firth.utils.errors import InputError

WORDS, VECTORS = "words", "vectors"  # names in a `.npz`
WORD_FILES = (".vocab", ".words", ".words.txt", ".txt", ".parquet")  # beside a `.npy`
WORD_SUFFIXES = (".vocab", ".words", ".parquet")  # of any name
# What the libraries raise for damaged headers and archives.
DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError),
    *(ValueError, TypeError, KeyError, SyntaxError, RuntimeError, OverflowError, MemoryError),
)
ROWS = 1 << 16  # converted together


def read_npz(path: Path, limit: int = 0) -> WordVectors:
    """Read `.npz`: a list of words and a matrix, mostly called `words` and `vectors`."""
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {
                info.filename.removesuffix(".npy"): _member(path, archive, info)
                for info in archive.infolist()
            }
    except DAMAGES as error:
        raise InputError(f"{path} is damaged: {error}.") from error
    words = _only(arrays, lambda array: array.ndim == 1 and array.dtype.kind in "US", WORDS)
    vectors = _only(arrays, lambda array: array.ndim == 2 and array.dtype.kind in "fiu", VECTORS)
    if words is None or vectors is None:
        listed = ", ".join(f"{name} {a.shape} {a.dtype}" for name, a in arrays.items()) or "none"
        raise InputError(
            f"{path} needs one array of words (strings) and one of vectors (V x W numbers); it has "
            f"{listed}."
        )
    if words.dtype.kind == "S":
        words = np.char.decode(words, "utf-8", "replace")
    return _join(str(path), words.tolist(), vectors, limit)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        return _array(f"{path} ({info.filename})", file, info.file_size)  # type: ignore[arg-type]


def _array(name: str, file: BinaryIO, size: int) -> NDArray[Any]:
    """Read an array whose header fits the size of its file."""
    try:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}
        header = read.get(version, np.lib.format.read_array_header_2_0)(file)
        shape, by_columns, dtype = header
        if dtype.hasobject:
            raise InputError(
                f"{name} holds Python objects, which are never unpickled; save words as "
                'np.array(words, dtype="U").'
            )
        count = int(np.prod(shape, dtype=object))
        if size > MAX_BYTES:
            raise ValueError(f"it has {size:,} bytes, more than {MAX_BYTES >> 30} GiB")
        if count * dtype.itemsize > size:
            raise ValueError(f"its header says {shape}, more than its {size:,} bytes")
        flat = np.frombuffer(file.read(count * dtype.itemsize), dtype, count=count)
    except DAMAGES as error:
        raise InputError(f"{name} is no valid array: {error}.") from error
    return flat.reshape(shape, order="F" if by_columns else "C")


def _only(arrays: dict[str, NDArray[Any]], fits: Any, name: str) -> NDArray[Any] | None:
    """Return the array of a name, or the only one that fits."""
    fitting = {key: array for key, array in arrays.items() if fits(array)}
    if name in fitting:
        return fitting[name]
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def read_npy(path: Path, limit: int = 0) -> WordVectors:
    """Read `.npy`, with the words of a file beside it: one in each line, or a Parquet column."""
    try:
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGES as error:
        raise InputError(f"{path} is no valid array: {error}.") from error
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise InputError(f"{path} is {vectors.shape} {vectors.dtype}, not a V x W matrix.")
    return _join(str(path), _words_beside(path, len(vectors)), vectors, limit)


def _words_beside(path: Path, count: int) -> list[str]:
    """Read the words of the rows of a `.npy`.

    They are in a file of the same name, or else in the only file of words in the folder.
    """
    same = [path.with_suffix(suffix) for suffix in WORD_FILES]
    others = sorted(
        p for p in path.parent.iterdir() if p.suffix in (".vocab", ".words", ".parquet")
    )
    found = [file for file in same if file.is_file()] or (others if len(others) == 1 else [])
    if not found:
        raise InputError(
            f"{path} has no words: put them into {path.with_suffix('.vocab')}, one in each line."
        )
    words = list(_read_words(found[0]))
    if len(words) != count:
        raise InputError(f"{path} has {count:,} rows, but {found[0]} has {len(words):,} words.")
    return words


def _read_words(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        from pyarrow import ArrowInvalid, parquet, types

        try:
            table = parquet.read_table(path)
        except ArrowInvalid as error:
            raise InputError(f"{path} is no Parquet file: {error}.") from error
        names = [f.name for f in table.schema if types.is_string(f.type)]
        if not names:
            raise InputError(f"{path} has no column of words.")
        yield from table.column(names[0]).to_pylist()
        return
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        yield from (line.rstrip("\r\n") for line in file)


def _join(name: str, words: list[str], vectors: NDArray[Any], limit: int) -> WordVectors:
    if len(words) != len(vectors):
        raise InputError(f"{name} has {len(words):,} words, but {len(vectors):,} vectors.")
    if not vectors.size:
        raise InputError(f"{name} has no vectors: its matrix is {vectors.shape}.")
    collector = VectorCollector(name, vectors.shape[1], limit=limit, unit="row")
    collector.check_size(len(words))
    for first in range(0, len(words), ROWS):
        with np.errstate(over="ignore"):  # infinity is reported by the collector
            block: Matrix = np.asarray(vectors[first : first + ROWS]).astype(np.float32)
        collector.add(words[first : first + ROWS], block, first + 1)
        if collector.full:
            break
    return collector.finish()
