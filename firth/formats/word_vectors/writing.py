"""Write word vectors: word2vec text and binary, GloVe text, fastText `.vec`, NumPy `.npz`.

Numbers are written with as many digits as their 32 bits need, so that reading returns the same.

V  words     W  numbers of a vector     n  rows of a block
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
from pyarrow import compute

from firth.formats.word_vectors.numpy_files import VECTORS, WORDS
from firth.formats.word_vectors.word_vectors import Matrix, WordVectors
from firth.utils.errors import InputError, UsageError, storage_errors, suggest
from firth.utils.files import atomic_file
from firth.utils.surrogates import SURROGATE

ROWS = 4096  # written together
COMPRESSORS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda file: cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="wb", mtime=0)),
    ".xz": lambda file: cast(BinaryIO, lzma.LZMAFile(file, "wb")),
    ".bz2": lambda file: cast(BinaryIO, bz2.BZ2File(file, "wb")),
}


def write_word_vectors(vectors: WordVectors, path: str | Path, *, format: str) -> None:
    """Write a file in a format of `VECTOR_FORMATS`; `.gz` and `.xz` are compressed.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "small.txt")
    >>> small = WordVectors(["sun", "moon"], np.array([[1, 0], [0.1, 2]], dtype=np.float32))
    >>> write_word_vectors(small, path, format="word2vec"); print(path.read_text())
    2 2
    sun 1 0
    moon 0.1 2
    <BLANKLINE>
    """
    path = Path(path)
    chosen = vector_format(format)
    _check_words(vectors, chosen, format)
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file, _compressed(file, path, chosen) as stream:
            chosen.write(stream, vectors)


def vector_format(name: str) -> VectorFormat:
    """Look up a format by its name."""
    if name not in VECTOR_FORMATS:
        raise UsageError(f"There is no format {name!r} of vectors; {suggest(name, VECTOR_FORMATS)}")
    return VECTOR_FORMATS[name]


@contextmanager
def _compressed(file: BinaryIO, path: Path, chosen: VectorFormat) -> Iterator[BinaryIO]:
    if path.suffix not in COMPRESSORS or not chosen.compresses:
        yield file
        return
    with COMPRESSORS[path.suffix](file) as stream:
        yield stream


def _check_words(vectors: WordVectors, chosen: VectorFormat, name: str) -> None:
    """Raise InputError for a word that could not be read again."""
    for row, word in enumerate(vectors.words, 1):
        if not word or not chosen.forbidden.isdisjoint(word) or SURROGATE.search(word):
            raise InputError(
                f"Word {row:,} of {vectors.source}, {word!r}, cannot be written as {name}: it is "
                "empty, or has white space or other characters that such a file cannot hold; "
                "remove it, or use another format."
            )


def _blocks(vectors: WordVectors) -> Iterator[tuple[list[str], Matrix]]:
    for first in range(0, len(vectors.words), ROWS):
        yield vectors.words[first : first + ROWS], vectors.vectors[first : first + ROWS]


def _write_glove(file: BinaryIO, vectors: WordVectors) -> None:
    for words, block in _blocks(vectors):
        columns = [
            compute.cast(pa.array(np.ascontiguousarray(column)), pa.string()) for column in block.T
        ]
        lines = compute.binary_join_element_wise(pa.array(words), *columns, " ")
        file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())


def _write_word2vec(file: BinaryIO, vectors: WordVectors) -> None:
    file.write(_header(vectors))
    _write_glove(file, vectors)


def _write_binary(file: BinaryIO, vectors: WordVectors) -> None:
    file.write(_header(vectors))
    for words, block in _blocks(vectors):
        rows = zip(words, block.astype("<f4"), strict=True)
        file.write(b"".join(word.encode() + b" " + row.tobytes() for word, row in rows))


def _header(vectors: WordVectors) -> bytes:
    return f"{len(vectors.words)} {vectors.dimension}\n".encode()


def _write_numpy(file: BinaryIO, vectors: WordVectors) -> None:
    arrays = {WORDS: np.array(vectors.words, dtype=np.str_), VECTORS: vectors.vectors}
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


@dataclass(frozen=True)
class VectorFormat:
    """A format that word vectors are written in."""

    about: str
    write: Callable[[BinaryIO, WordVectors], None]
    forbidden: frozenset[str]  # characters of words
    compresses: bool = True


VECTOR_FORMATS = {
    "word2vec": VectorFormat("word2vec text, with a header", _write_word2vec, frozenset(" \t\r\n")),
    "word2vec-binary": VectorFormat("word2vec binary", _write_binary, frozenset(" \n")),
    "glove": VectorFormat("GloVe text, without a header", _write_glove, frozenset(" \t\r\n")),
    "fasttext": VectorFormat("fastText .vec", _write_word2vec, frozenset(" \t\r\n")),
    "numpy": VectorFormat("NumPy .npz", _write_numpy, frozenset("\0"), compresses=False),
}
