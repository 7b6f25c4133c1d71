"""Deduplication: exact and near duplicates in a corpus of any size, in bounded memory.

A model memorises pages that it sees many times (Lee et al. 2022), so only the first copy is kept.
Two documents are near duplicates when the sets of their character 5-grams have a Jaccard similarity
of 0.8 or more: characters need no tokenizer and work for any language.

A document's signature is a row of 128 numbers. The fraction of equal columns of two rows estimates
the similarity of the two documents: one-permutation MinHash (Li, Owen and Zhang 2012), with optimal
densification of empty bins (Shrivastava 2017). Four neighbouring columns make a band, and only
documents that agree in a whole band are compared (Leskovec et al. 2014, §3.4): at a similarity of
0.8, all but one pair in 20 million agree in one of the 32 bands.

Signatures are stored on disk by band, one file each. Every band is read once to find pairs to
compare, and once to compare all of them; only one band is in memory at a time.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
_Pairs = NDArray[np.int64]  # the later row in the upper 32 bits, the earlier row in the lower

_GRAM = 5  # characters
_PIECE = 4096  # grams
_BINS = 128
BANDS = 32
_EMPTY = 2**64 - 1  # a bin that no gram fell into; also a band of four 16-bit numbers, all ones

# Limits on memory: numbers of items hashed, sorted and compared at once, and of pairs collected.
_PIECES_AT_ONCE = 128
_KEYS_AT_ONCE = 1 << 21
_PAIRS_AT_ONCE = 1 << 16
_PAIRS_PER_DOCUMENT = 2


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
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in fingerprint_paths(directory)]

        def append(exact: Digests, near: Signatures) -> None:
            for file, column in zip(files, (exact, *near.view(np.uint64).T), strict=True):
                file.write(column.tobytes())

        yield append


def fingerprint_paths(directory: Path) -> list[Path]:
    """Return the file of digests and those of the bands: one 64-bit number per document in each."""
    return [directory / f"{name}.u64" for name in ("digests", *range(BANDS))]


def _read(path: Path) -> Digests:
    return np.fromfile(path, np.uint64)


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
    verdicts = find_exact_duplicates(directory)
    _mark_near_duplicates(fingerprint_paths(directory)[1:], threshold, verdicts)
    return verdicts


def find_exact_duplicates(directory: Path) -> Verdicts:
    """Return a verdict for every document in ``directory``: keep or exact duplicate."""
    paths = fingerprint_paths(directory)
    count, *others = {path.stat().st_size // 8 for path in paths}
    if others:
        raise ValueError(f"{directory} holds digests and signatures of different numbers of texts.")
    verdicts = np.full(count, KEEP, dtype=np.uint8)
    for rows, buckets in _buckets(_read(paths[0]), verdicts):
        verdicts[rows[1:][buckets[1:] == buckets[:-1]]] = EXACT
    return verdicts


def near_duplicates_in_band(
    directory: Path, band: int, verdicts: Verdicts, threshold: float = 0.8
) -> NDArray[np.int64]:
    """Return the near duplicates among documents that agree in one band, as `find_duplicates` does.

    ``verdicts`` are those of `find_exact_duplicates`. The near duplicates of all bands together are
    those of the corpus, so that every band may be searched by another machine.
    """
    paths, marked = fingerprint_paths(directory)[1:], verdicts.copy()
    following = np.zeros(len(verdicts), dtype=np.uint64)
    for later in reversed(paths[band + 1 : band + 5]):
        following >>= 16
        following |= mix_bits(_read(later)) << 48
    keys = _read(paths[band])
    for rows, buckets in _buckets(keys, verdicts):
        new = list(_candidates(rows, buckets, following[rows], marked))
        _compare(paths, _merge(np.empty(0, dtype=np.int64), new), threshold, marked)
    return np.flatnonzero(marked == NEAR)


def _mark_near_duplicates(bands: Sequence[Path], threshold: float, verdicts: Verdicts) -> None:
    """Collect pairs that agree in a band, and compare them: all at the end, if memory allows."""
    limit = max(_PAIRS_AT_ONCE, _PAIRS_PER_DOCUMENT * len(verdicts))
    pairs, new = np.empty(0, dtype=np.int64), list[_Pairs]()
    # Hashes of the four bands after the current one, 16 bits each.
    following = np.zeros(len(verdicts), dtype=np.uint64)
    for band in reversed(bands):
        keys = _read(band)
        for rows, buckets in _buckets(keys, verdicts):
            new += _candidates(rows, buckets, following[rows], verdicts)
            if sum(map(len, new)) > limit // 2:
                pairs = _merge(pairs, new)
            if len(pairs) > limit:
                _compare(bands, pairs, threshold, verdicts)
                pairs = pairs[:0]
        following >>= 16
        following |= mix_bits(keys) << 48
    _compare(bands, _merge(pairs, new), threshold, verdicts)


def _merge(pairs: _Pairs, new: list[_Pairs]) -> _Pairs:
    """Return the distinct pairs, and clear the list of new ones."""
    merged = np.concatenate((pairs, *new))
    new.clear()
    merged.sort()
    return merged[np.append(merged[1:] != merged[:-1], True)[: len(merged)]]


def _buckets(keys: Digests, verdicts: Verdicts) -> Iterator[tuple[_Rows, _Rows]]:
    """Yield rows that share their key with others, bucket by bucket, and the bucket of each."""
    parts = len(keys) // _KEYS_AT_ONCE + 1
    part_of = (keys % parts).astype(np.uint16)
    usable = (verdicts != EXACT) & (keys != _EMPTY)
    for part in range(parts):
        rows = np.flatnonzero(usable & (part_of == part))
        rows = rows[np.argsort(keys[rows], kind="stable")]  # equal keys stay in reading order
        new = np.diff(keys[rows], prepend=_EMPTY) != 0  # the first row of each bucket
        shared = ~(new & np.append(new[1:], True))
        yield rows[shared], np.cumsum(new[shared])


def _candidates(
    rows: _Rows, buckets: _Rows, following: Digests, verdicts: Verdicts
) -> Iterator[_Pairs]:
    """Yield pairs to compare: a row with the first, the previous and the most similar of a bucket.

    The most similar are neighbours when a bucket is sorted by the following bands (LSH Forest,
    Bawa et al. 2005): without them, few of the similar pairs in a large bucket would be compared.
    """
    firsts = rows[np.flatnonzero(np.diff(buckets, prepend=0))][buckets - 1]
    same = buckets[1:] == buckets[:-1]
    order = np.lexsort((following, buckets))
    alike = same & (np.diff(following[order] >> 48) == 0)
    for one, other, chosen in (
        (firsts[:-1], rows[1:], same),
        (rows[:-1], rows[1:], same),
        (rows[order[:-1]], rows[order[1:]], alike),
    ):
        earlier, later = np.minimum(one, other)[chosen], np.maximum(one, other)[chosen]
        undecided = verdicts[later] == KEEP
        yield later[undecided] << 32 | earlier[undecided]


def _compare(bands: Sequence[Path], pairs: _Pairs, threshold: float, verdicts: Verdicts) -> None:
    """Mark the later row of each pair whose fraction of equal bins is at least ``threshold``."""
    equal = np.zeros(len(pairs), dtype=np.uint8)
    for band in bands if len(pairs) else ():
        keys = np.memmap(band, np.uint64, "r")  # few of the rows may be needed
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            part = slice(start, start + _PAIRS_AT_ONCE)
            later, earlier = keys[pairs[part] >> 32], keys[pairs[part] & 0xFFFFFFFF]
            bins = later.view(np.uint16) == earlier.view(np.uint16)
            equal[part] += bins.reshape(-1, _BINS // BANDS).sum(axis=1, dtype=np.uint8)
    verdicts[pairs[equal >= threshold * _BINS] >> 32] = NEAR
