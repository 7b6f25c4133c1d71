"""Tokens on disk: memory-mapped, with the places where documents and sentences begin.

    shards/  index.json                   what there is, its SHA-256 sums, how it was made
             tokenizer.json …             the tokenizer that made it
             train-00000.tokens.npy       (tokens,) uint16, or uint32 for a large vocabulary
             train-00000.documents.npy    (documents + 1,) int64: where each begins; the end
             train-00000.sentences.npy    (sentences + 1,) int64: likewise
             train-00000.sources.npy      (documents,) uint16: number of each document's source;
                                          only if the sources of the text have names
             valid-00000.…

The tokens are those of the text alone, without special tokens: an objective adds them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from firth.data.remote_shards import RemoteTokens, copy_index, shards_url
from firth.utils.errors import InputError, MismatchError
from firth.utils.files import sha256, write_array
from firth.utils.object_stores import is_url, read_bytes
from firth.utils.rng import Longs

FORMAT = 1
ARRAYS = ("tokens", "documents", "sentences")
OFFSETS = ("documents", "sentences")  # arrays of start offsets, with the end

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


def token_type(vocab_size: int) -> DTypeLike:
    """Return the smallest integer type that holds every token id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


@dataclass
class TokenizedDocuments:
    """Tokens, with the lengths of all documents and sentences."""

    tokens: Tokens
    documents: NDArray[np.int64]
    sentences: NDArray[np.int64]
    sources: NDArray[np.uint16] | None = None  # of each document


def write_shard(folder: Path, name: str, passages: list[TokenizedDocuments]) -> dict[str, Any]:
    """Write concatenated documents as one shard; return its entry in the index."""
    keys = ARRAYS if passages[0].sources is None else (*ARRAYS, "sources")
    joined = {key: np.concatenate([getattr(p, key) for p in passages]) for key in keys}
    entry: dict[str, Any] = {"name": name, "sha256": {}}
    for key, array in joined.items():
        entry[key] = len(array)
        if key in OFFSETS:
            array = np.concatenate(([0], np.cumsum(array)))
        path = _path(folder, name, key)
        write_array(path, array)
        entry["sha256"][key] = sha256(path)
    return entry


def damaged(folder: Path, entry: dict[str, Any]) -> list[Path]:
    """Return the files of a shard that are missing or have a wrong checksum."""
    paths = {_path(folder, entry["name"], key): sum for key, sum in entry["sha256"].items()}
    url = shards_url(folder)
    return [path for path, sum in paths.items() if _checksum(path, url) != sum]


def _checksum(path: Path, url: str | None) -> str:
    """Return the checksum of a file, or of that in an object store; "" if it is missing."""
    if url is not None and not path.is_file():
        return hashlib.sha256(read_bytes(f"{url}/{path.name}")).hexdigest()
    return sha256(path) if path.is_file() else ""


def read_index(folder: Path) -> dict[str, Any]:
    """Read the index of a shard directory."""
    path = folder / "index.json"
    if not path.is_file():
        raise InputError(
            f"{folder} holds no shards (no index.json); create them with `firth prepare`, or "
            "pre-train on text with --tokenizer MODEL."
        )
    try:
        index = json.loads(path.read_bytes())
        if index["format"] != FORMAT:
            raise InputError(
                f"{path} has format {index['format']}; this version of Firth reads {FORMAT}."
            )
        for key in ("tokenizer", "splits", "report", "plan"):
            index[key]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not an index of shards: {error!r}.") from error
    return index


def open_shard(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Memory-map the arrays of a shard; tokens in an object store are read when needed."""
    paths = {key: _path(folder, entry["name"], key) for key in entry["sha256"]}
    remote = {}
    if (url := shards_url(folder)) is not None:
        tokens = f"{url}/{paths.pop('tokens').name}"
        remote = {"tokens": RemoteTokens(tokens, entry["tokens"], entry["sha256"]["tokens"])}
    return {key: _map(path, entry, key) for key, path in paths.items()} | remote


def _map(path: Path, entry: dict[str, Any], key: str) -> NDArray[Any]:
    try:
        # A plain view of the memory map: slicing `np.memmap` is slow.
        array = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged: {error}.") from error
    if len(array) != entry[key] + (key in OFFSETS):
        raise InputError(f"{path} is damaged: {len(array)} entries, not {entry[key]}.")
    return array


class HasFingerprint(Protocol):
    """An object with a fingerprint, such as a tokenizer."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the token ids of a text."""
        ...


class Shards:
    """The documents of one split, numbered across all its shards.

    `path` is a directory, or a URL such as s3://bucket/shards. With a tokenizer, raise an error if
    the shards were made with another one.
    """

    def __init__(
        self, path: str | Path, split: str = "train", tokenizer: HasFingerprint | None = None
    ) -> None:
        self.path = copy_index(str(path)) if is_url(path) else Path(path)
        self.index = read_index(self.path)
        if split not in self.index["splits"]:
            raise InputError(
                f"{self.path} has no split '{split}', only {list(self.index['splits'])}."
            )
        if tokenizer and tokenizer.fingerprint != self.index["tokenizer"]:
            raise MismatchError(
                f"{self.path} was made with another tokenizer; prepare the text again."
            )
        self.split = split
        self.entries = self.index["splits"][split]["shards"]
        self.tokens = sum(entry["tokens"] for entry in self.entries)
        self.source_names: list[str] = self.index.get("sources", [])
        self._first = np.cumsum([0] + [entry["documents"] for entry in self.entries])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __repr__(self) -> str:
        return f"Shards({self.path}, {self.split}, {len(self):,} documents, {self.tokens:,} tokens)"

    def __getitem__(self, document: int) -> Tokens:
        """Return the tokens of a document, memory-mapped."""
        shard, start, end = self._place(document)
        return self._arrays[shard]["tokens"][start:end]

    def gather(self, documents: Longs, starts: Longs, ends: Longs) -> Longs:
        """Return concatenated spans of documents."""
        sizes = ends - starts
        tokens = np.empty(int(sizes.sum()), dtype=np.int64)
        inside = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        shard = np.searchsorted(self._first, documents, side="right") - 1
        begins = self._begins[documents] + starts
        for number in np.unique(shard):
            rows = np.repeat(shard == number, sizes)
            places = np.repeat(begins, sizes)[rows] + inside[rows]
            tokens[rows] = self._arrays[number]["tokens"][places]
        return tokens

    @cached_property
    def _begins(self) -> Longs:
        """Start of each document in its shard."""
        starts = [arrays["documents"][:-1] for arrays in self._arrays]
        return np.concatenate([*starts, np.empty(0, dtype=np.int64)])

    def sentences(self, document: int) -> NDArray[np.int64]:
        """Return the starts of a document's sentences, then its length."""
        shard, start, end = self._place(document)
        starts = self._arrays[shard]["sentences"]
        first, last = np.searchsorted(starts, (start, end))
        return starts[first : last + 1] - start

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Length of each document in tokens."""
        sizes = [np.diff(arrays["documents"]) for arrays in self._arrays]
        return np.concatenate([*sizes, np.empty(0, dtype=np.int64)])

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """Number of the source of each document; 0 if the sources have no names."""
        if not self.source_names:
            return np.zeros(len(self), dtype=np.int64)
        return np.concatenate([arrays["sources"] for arrays in self._arrays]).astype(np.int64)

    @cached_property
    def source_tokens(self) -> dict[str, int]:
        """Number of tokens of each named source."""
        counts = np.zeros(len(self.source_names), dtype=np.int64)
        if self.source_names:
            np.add.at(counts, self.sources, self.lengths)
        return dict(zip(self.source_names, counts.tolist(), strict=True))

    def verify(self) -> None:
        """Verify the checksum of every file."""
        for entry in self.entries:
            for path in damaged(self.path, entry):
                raise InputError(f"{path} is damaged; prepare the text again.")

    def _place(self, document: int) -> tuple[int, int, int]:
        if not 0 <= document < len(self):
            raise IndexError(f"document {document} of {len(self)}")
        shard = int(np.searchsorted(self._first, document, side="right")) - 1
        start = int(self._begins[document])
        return shard, start, start + int(self.lengths[document])

    @cached_property
    def _arrays(self) -> list[dict[str, Any]]:
        return [open_shard(self.path, entry) for entry in self.entries]


class MemoryShards(Shards):
    """Tokenized documents in memory, read like shards; `name` is for messages."""

    def __init__(self, documents: TokenizedDocuments, name: str) -> None:
        self.path = Path(name)
        self.tokens = len(documents.tokens)
        self.source_names = []
        self._first = np.array([0, len(documents.documents)])
        arrays: dict[str, NDArray[Any]] = {"tokens": documents.tokens}
        for key in OFFSETS:
            arrays[key] = np.concatenate(([0], np.cumsum(getattr(documents, key))))
        self._arrays = [arrays]


def _path(folder: Path, name: str, key: str) -> Path:
    return folder / f"{name}.{key}.npy"
