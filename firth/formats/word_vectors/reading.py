"""Open a file of word vectors of any format, recognized by its content."""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from firth.data.input_files import COMPRESSIONS
from firth.formats.word_vectors.binary_files import read_binary
from firth.formats.word_vectors.numpy_files import read_npy, read_npz
from firth.formats.word_vectors.text_files import FORMATS, HEADER, read_text
from firth.formats.word_vectors.word_vectors import WordVectors
from firth.utils.errors import InputError, UsageError

HEAD = 1 << 16  # bytes by which a format is recognized
MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"BZh": ".bz2"}
CONTROL = frozenset(range(32)) - set(b"\t\n\r")  # bytes that are in no text
NPZ, NPY, FASTTEXT = b"PK\x03\x04", b"\x93NUMPY", b"\xba\x16\x4f\x2f"
PICKLES = tuple(bytes([0x80, version]) for version in range(2, 6))


def read_word_vectors(path: str | Path, *, limit: int = 0) -> WordVectors:
    """Read the words of a file and their vectors, or the first `limit` words.

    The file is one of word2vec (text or binary), GloVe, fastText (`.vec`), each also compressed by
    gzip or xz, or of NumPy. Bad input is an error that names the line; what was read in a way that
    is not obvious is in `notes`.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "small.txt")
    >>> _ = path.write_text("sun 1 0\\nmoon 0.5 0.5\\n", encoding="utf-8")
    >>> read_word_vectors(path).words, read_word_vectors(path, limit=1).words
    (['sun', 'moon'], ['sun'])
    """
    path = Path(path)
    if limit < 0:
        raise UsageError(f"`limit` is a number of words, or 0 for all, not {limit}.")
    head = _head(path)
    if head.startswith(NPZ):
        return read_npz(path, limit)
    if head.startswith(NPY):
        return read_npy(path, limit)
    compressed = any(head.startswith(magic) for magic in MAGIC)
    with _open(path) as stream:
        start = stream.read(HEAD)
    read = read_binary if _is_binary(path, start) else read_text
    with _open(path) as stream:
        return read(str(path), stream, limit, 0 if compressed else os.path.getsize(path))


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(16)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file, decompressed if its content is compressed."""
    head = _head(path)
    compression = next((name for magic, name in MAGIC.items() if head.startswith(magic)), "")
    try:
        with open(path, "rb") as raw:
            yield COMPRESSIONS[compression](raw)
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise InputError(
            f"{path} is damaged or incomplete ({error}); download it again."
        ) from error


def _is_binary(path: Path, start: bytes) -> bool:
    """Tell word2vec's binary format from text; raise InputError for what is neither."""
    if not start.strip():
        raise InputError(f"{path} is empty: each line of a vector file is a word and its numbers.")
    if start.startswith(PICKLES):
        raise InputError(
            f"{path} is a pickle, which is never opened; in gensim, save the vectors with "
            "save_word2vec_format."
        )
    if start.startswith(FASTTEXT):
        raise InputError(f"{path} is a model of fastText; use the vectors of its .vec file.")
    first, _, rest = start.partition(b"\n")
    header = HEADER.fullmatch(first)
    if header is not None and not _is_row(rest.partition(b"\n")[0], int(header[2])):
        if path.suffix == ".bin" or not CONTROL.isdisjoint(start):
            return True
    elif b"\0" in start:
        raise InputError(f"{path} is no model: it is neither a directory nor {FORMATS}.")
    return False


def _is_row(line: bytes, width: int) -> bool:
    """Tell whether a line is a word and as many numbers.

    >>> _is_row(b"the 0.1 -2", 2), _is_row(b"the 0.1", 2), _is_row(b"the a b", 2)
    (True, False, False)
    """
    try:
        return len([float(number) for number in line.split(b" ")[1:] if number.strip()]) == width
    except ValueError:
        return False
