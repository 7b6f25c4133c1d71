"""Deduplication: exact and near duplicates in a corpus of any size, in bounded memory.

A model memorises pages that it sees many times (Lee et al. 2022), so only the first copy is kept.
Two documents are near duplicates when the sets of their character 5-grams have a Jaccard similarity
of 0.8 or more: characters need no tokenizer and work for any language.

A document's signature is a row of 128 numbers. The fraction of equal columns of two rows estimates
the similarity of the two documents: one-permutation MinHash (Li, Owen and Zhang 2012), with optimal
densification of empty bins (Shrivastava 2017). Four neighbouring columns make a band, and only
documents that agree in a whole band are compared (Leskovec et al. 2014, §3.4): at a similarity of
0.8, all but one pair in 20 million agree in one of the 32 bands. Signatures are stored on disk.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firth.utils.rng import mix_bits

KEEP, EXACT, NEAR = 0, 1, 2  # verdicts

Digests = NDArray[np.uint64]  # (texts,)
Signatures = NDArray[np.uint16]  # (texts, bins)
Verdicts = NDArray[np.uint8]  # (texts,)
_Rows = NDArray[np.int64]

_GRAM = 5  # characters
_PIECE = 4096  # grams
_BINS = 128
_BANDS = 32
_ROW_BYTES = 2 * _BINS
_EMPTY = 2**64 - 1  # a bin that no gram fell into; also a band of four 16-bit numbers, all ones

# Limits on memory: numbers of items hashed, read from disk, sorted and compared at once.
_PIECES_AT_ONCE = 128
_ROWS_AT_ONCE = 1 << 16
_KEYS_AT_ONCE = 1 << 21
_PAIRS_AT_ONCE = 1 << 14


# --- fingerprints -------------------------------------------------------------------------------


def digests(texts: Sequence[str]) -> Digests:
    """Hash whole texts: equal texts, and in practice no others, have equal digests.

    >>> one, same, other = digests(["Sannu!", "Sannu!", "Sannu."])
    >>> bool(one == same), bool(one == other)
    (True, False)
    """
    encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
    joined = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in encoded)
    return np.frombuffer(joined, dtype=np.uint64)


def signatures(texts: Sequence[str]) -> Signatures:
    """Compute MinHash signatures: the fraction of equal columns estimates the similarity of texts.

    Case and white space are ignored. A text of fewer than 5 characters has a row of all ones.

    >>> rows = signatures(["Habari za asubuhi, rafiki yangu?", "habari za  asubuhi, rafiki yako?"])
    >>> rows.shape, bool(0.5 < (rows[0] == rows[1]).mean() < 1)
    ((2, 128), True)
    """
    # One additional row for the n-grams that cross from one text into the next.
    minima = np.full((len(texts) + 1, _BINS), _EMPTY, dtype=np.uint64)  # (texts + 1, bins)
    pieces = _pieces(texts)
    while batch := list(islice(pieces, _PIECES_AT_ONCE)):
        owners = [owner for row, _ in batch for owner in (row, len(texts))]
        grams = [count for _, piece in batch for count in (len(piece) - _GRAM + 1, _GRAM - 1)]
        hashes = _gram_hashes("".join(piece for _, piece in batch))
        owner = np.repeat(owners, grams)[: len(hashes)]
        # The upper 7 bits choose the bin; within a bin the rest decides which hash is least.
        np.minimum.at(minima.reshape(-1), owner * _BINS + (hashes >> 57).astype(np.int64), hashes)
    return _densify(minima[:-1]).astype(np.uint16)  # the low 16 bits of a least hash are uniform


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Normalise texts and split them; yield each piece with the row of its text.

    Pieces overlap by one character less than an n-gram, so that no n-gram is lost.
    """
    for row, text in enumerate(texts):
        folded = " ".join(text.casefold().split())
        for start in range(0, len(folded) - _GRAM + 1, _PIECE):
            yield row, folded[start : start + _PIECE + _GRAM - 1]


def _gram_hashes(text: str) -> NDArray[np.uint64]:
    """Hash every run of 5 characters: a polynomial in the code points, then mixed."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    count = len(codes) - _GRAM + 1
    hashes = codes[:count].astype(np.uint64)
    for offset in range(1, _GRAM):
        hashes *= 0x9E3779B97F4A7C15  # odd, so that nothing is lost modulo 2^64
        hashes += codes[offset : offset + count]
    return mix_bits(hashes)


# Column b is a random order of the other bins, from which bin b, if empty, copies its value.
_DONORS = mix_bits(np.arange(_BINS * _BINS, dtype=np.uint64)).reshape(_BINS, _BINS).argsort(axis=0)


def _densify(minima: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Fill each empty bin from the first non-empty one in its order (Shrivastava 2017)."""
    dense = minima.copy()
    rows, bins = np.nonzero(minima == _EMPTY)
    for donors in _DONORS:
        dense[rows, bins] = minima[rows, donors[bins]]
        still = dense[rows, bins] == _EMPTY
        rows, bins = rows[still], bins[still]
        if not len(rows):
            break
    return dense


# --- files and search ---------------------------------------------------------------------------


@contextmanager
def open_fingerprints(directory: Path) -> Iterator[Callable[[Digests, Signatures], None]]:
    """Open new files in ``directory``; yield a function that appends a batch, in reading order.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name, open_fingerprints(Path(name)) as append:
    ...     append(digests(["Karibu."]), signatures(["Karibu."]))
    """
    directory.mkdir(parents=True, exist_ok=True)
    digest_path, signature_path = _paths(directory)
    with open(digest_path, "wb") as digest_file, open(signature_path, "wb") as signature_file:

        def append(exact: Digests, near: Signatures) -> None:
            digest_file.write(exact.data)
            signature_file.write(near.data)

        yield append


def _paths(directory: Path) -> tuple[Path, Path]:
    return directory / "digests.u64", directory / "signatures.u16"


def find_duplicates(directory: Path, threshold: float = 0.8) -> Verdicts:
    """Return a verdict for every document in ``directory``: keep, exact or near duplicate.

    >>> from tempfile import TemporaryDirectory
    >>> story = "Once upon a time a hare met a tortoise on the road to the old market."
    >>> texts = [story, "Another story altogether.", story, story.replace("old", "olde")]
    >>> with TemporaryDirectory() as name:
    ...     with open_fingerprints(Path(name)) as append:
    ...         append(digests(texts), signatures(texts))
    ...     find_duplicates(Path(name))
    array([0, 0, 1, 2], dtype=uint8)
    """
    digest_path, signature_path = _paths(directory)
    count = digest_path.stat().st_size // 8
    if signature_path.stat().st_size != count * _ROW_BYTES:
        raise ValueError(f"{directory} holds digests and signatures of different numbers of texts.")
    verdicts = np.full(count, KEEP, dtype=np.uint8)
    for _, _, later in _collisions(digest_path, 1, 0, verdicts):
        verdicts[later] = EXACT
    with open(signature_path, "rb", buffering=0) as file:
        for band in range(_BANDS):
            for first, previous, later in _collisions(signature_path, _BANDS, band, verdicts):
                _compare(file, first, later, threshold, verdicts)
                _compare(file, previous, later, threshold, verdicts)
    return verdicts


def _collisions(
    path: Path, width: int, column: int, verdicts: Verdicts
) -> Iterator[tuple[_Rows, _Rows, _Rows]]:
    """Yield rows that share a key with earlier rows: the first and the previous such, the row."""
    parts = len(verdicts) // _KEYS_AT_ONCE + 1
    for part in range(parts):
        selected = []
        for start, block in _blocks(path, width, column, len(verdicts)):
            distinct = verdicts[start : start + len(block)] != EXACT
            rows = np.flatnonzero(distinct & (block != _EMPTY) & (block % parts == part))
            selected.append((block[rows], rows + start))
        keys, rows = (np.concatenate(arrays) for arrays in zip(*selected, strict=True))
        order = np.argsort(keys, kind="stable")  # equal keys stay in reading order
        for first, previous in _repeats(keys[order]):
            yield rows[order[first]], rows[order[previous]], rows[order[previous + 1]]


def _repeats(keys: Digests) -> Iterator[tuple[_Rows, _Rows]]:
    """Yield, for sorted keys, each index before an equal key, and the first index of that key."""
    places = np.flatnonzero(keys[1:] == keys[:-1])
    opens = np.diff(places, prepend=-2) > 1
    firsts = places[opens][np.cumsum(opens) - 1]
    for start in range(0, len(places), _PAIRS_AT_ONCE):
        yield firsts[start : start + _PAIRS_AT_ONCE], places[start : start + _PAIRS_AT_ONCE]


def _blocks(path: Path, width: int, column: int, count: int) -> Iterator[tuple[int, Digests]]:
    """Read one column of a table of 64-bit keys in blocks; yield each with its first row."""
    for start in range(0, max(count, 1), _ROWS_AT_ONCE):
        block = np.fromfile(path, np.uint64, _ROWS_AT_ONCE * width, offset=start * width * 8)
        yield start, block.reshape(-1, width)[:, column]


def _compare(
    file: FileIO, earlier: _Rows, later: _Rows, threshold: float, verdicts: Verdicts
) -> None:
    """Mark later rows whose fraction of bins equal to the earlier row is at least ``threshold``."""
    undecided = verdicts[later] == KEEP
    earlier, later = earlier[undecided], later[undecided]
    alike = (_read_rows(file, earlier) == _read_rows(file, later)).mean(axis=1) >= threshold
    verdicts[later[alike]] = NEAR


def _read_rows(file: FileIO, rows: _Rows) -> Signatures:
    """Read single signatures; a memory map would keep every page in memory."""
    found = np.empty((len(rows), _BINS), dtype=np.uint16)
    for row, signature in zip(rows.tolist(), found, strict=True):
        file.seek(row * _ROW_BYTES)
        file.readinto(signature.data)
    return found
