"""Weights in files: safetensors, mapped into memory rather than read, and safe whoever wrote them.

A safetensors file is eight bytes that say how long the header is, the header (JSON: of each tensor
its type, its shape and where its bytes lie), and the bytes of all tensors without a gap. Nothing in
it can be run, and nothing here believes a number in it before it has been checked.

A file that Firth writes carries two SHA-256 sums among its metadata: `sha256` is that of the
tensors' bytes, `sha256_header` that of the header itself, so that no bit of it can change unseen.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from firth.errors import InputError, MismatchError, Misuse
from firth.files import UNSEALED, atomic_file, is_sealed, seal

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LEGACY, LEGACY_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SUM, HEADER_SUM = "sha256", "sha256_header"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_DIMENSIONS = 64  # of a tensor, as in NumPy
MAX_INDEX = 100_000_000  # bytes, which is what safetensors allows a header
PIECE = 16 << 20  # bytes of a file that are in memory at a time while a tensor is copied
SHARD = r"[\w. -]{1,200}"  # a plain name, in the index's own directory
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class _Pages:
    """A file in memory, twice: giving a page back would undo what has been written into it."""

    changeable: mmap.mmap  # behind the tensors that are handed out
    unchanged: mmap.mmap  # read only while a tensor is copied


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies."""

    pages: _Pages
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # in bytes, from the beginning of the file


class Weights(Mapping[str, Tensor]):
    """Named tensors in one or more safetensors files, in the order they have there.

    A tensor is a view of the file's pages: it costs no memory until it is touched. Writing into it
    changes the memory of this process alone, never the file.
    """

    def __init__(self, entries: dict[str, _Entry], metadata: dict[str, str]) -> None:
        self.metadata = metadata  # of the first file
        self._entries = entries

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        return _tensor(entry.pages.changeable, entry.dtype, entry.shape, entry.start)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def copy_into(self, name: str, destination: Tensor) -> None:
        """Copy what the file holds into a tensor of the same shape, whatever its type and device.

        The file passes through memory piece by piece, so loading a model takes hardly more memory
        than the model.
        """
        entry = self._entries[name]
        if tuple(destination.shape) != entry.shape:
            raise MismatchError(
                f"{name} has the shape {_times(entry.shape)} in the file, "
                f"but {_times(tuple(destination.shape))} is needed."
            )
        destination = destination.detach() if entry.shape else destination.detach()[None]
        rows, *rest = destination.shape
        row_bytes = math.prod(rest) * entry.dtype.itemsize
        step = max(1, PIECE // max(1, row_bytes))
        for row in range(0, rows if row_bytes else 0, step):
            count, start = min(step, rows - row), entry.start + row * row_bytes
            pages = entry.pages.unchanged
            piece = _tensor(pages, entry.dtype, (count, *rest), start)
            destination[row : row + count].copy_(piece)
            page = start - start % mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, page, start + count * row_bytes - page)


def open_weights(path: Path) -> Weights:
    """Open a `.safetensors` file, or the one or many of a model's directory.

    A file that carries a sum of itself is read once and compared with it.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "model.safetensors")
    >>> _ = write_weights(path, {"bias": torch.tensor([1.0, 2.0])})
    >>> weights = open_weights(path.parent)
    >>> weights.shape("bias"), weights["bias"]
    ((2,), tensor([1., 2.]))
    """
    try:
        return _open(path)
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise InputError(f"{where} cannot be read ({why}).") from error


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors as safetensors, whole or not at all, and give the SHA-256 sum of their bytes.

    One tensor at a time is brought into the form that is written, so this takes hardly any memory.
    An OSError is left to the caller, who knows what `storage_errors` should advise.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "ones.safetensors")
    >>> write_weights(path, {"ones": torch.ones(2, dtype=torch.uint8)})[:8]
    '9dcf97a1'
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES or name == "__metadata__":
            raise Misuse(f"Safetensors cannot hold {name!r}, a tensor of {tensor.dtype}.")
    # The widest numbers come first, so that each lies where the processor wants it.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    size = len(_header(ordered, UNSEALED.decode()))
    digest = hashlib.sha256()
    with atomic_file(path) as file:
        file.write(bytes(8 + size))
        for tensor in ordered.values():
            data = _bytes(tensor)
            digest.update(data)
            file.write(data)
        file.seek(0)
        file.write(size.to_bytes(8, "little"))
        file.write(_header(ordered, digest.hexdigest()))
    return digest.hexdigest()


def _header(tensors: Mapping[str, Tensor], total: str) -> bytes:
    """The header as JSON, its own sum at its very beginning, of a length that 8 divides."""
    about = {HEADER_SUM: UNSEALED.decode(), SUM: total, "format": "pt"}
    entries: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    return seal(text + b" " * (-len(text) % 8))


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data


def _tensor(pages: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
    """A view of mapped pages, or a copy where the numbers do not lie at multiples of their size."""
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    if start % dtype.itemsize:
        copied = bytearray(pages[start : start + count * dtype.itemsize])
        return torch.frombuffer(copied, dtype=dtype).reshape(shape)
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=start).reshape(shape)


def _open(path: Path) -> Weights:
    if not path.is_dir():
        return Weights(*_open_file(path))
    if (path / WHOLE).exists():
        return Weights(*_open_file(path / WHOLE))
    if (path / INDEX).exists():
        return _open_shards(path / INDEX)
    for name in (LEGACY, LEGACY_INDEX):
        if (path / name).exists():
            raise legacy_refused(path, name)
    raise InputError(f"{path} holds no weights: there is neither {WHOLE} nor {INDEX}.")


def legacy_refused(where: str | Path, name: str) -> InputError:
    """Why a model that is only a pickle is not opened just like that."""
    return InputError(
        f"{where} holds its weights only as {name}, a legacy pickle that could run code when it is "
        "opened; add --allow-legacy (in Python allow_legacy=True) to have the numbers alone read "
        "and rewritten as safetensors."
    )


def _open_file(path: Path) -> tuple[dict[str, _Entry], dict[str, str]]:
    """The tensors of one file in the order of their bytes, and its metadata."""
    if not path.is_file():
        raise InputError(f"{path} is not there, or is not a file.")
    try:
        with safe_open(path, framework="numpy") as checked:
            checked.keys()
        with open(path, "rb") as file:
            header = _read_header(file)
            content = json.loads(header, object_pairs_hook=_without_repetition)
            metadata = content.pop("__metadata__", {})
            if SUM in metadata or HEADER_SUM in metadata:
                _check_sums(path, file, header, metadata)
            mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for _ in range(2)]
        pages, first = _Pages(*mapped), 8 + len(header)
        by_place = sorted(content.items(), key=lambda item: item[1]["data_offsets"])
        return {name: _entry(path, pages, first, values) for name, values in by_place}, metadata
    except (SafetensorError, *MALFORMED) as error:
        raise InputError(
            f"{path} cannot be read as safetensors: the file is incomplete or damaged; "
            "copy or download it again."
        ) from error


def _read_header(file: BufferedReader) -> bytes:
    size = int.from_bytes(file.read(8), "little")
    left = file.seek(0, 2) - 8
    if size > left:
        raise ValueError("the header is longer than the file")
    file.seek(8)
    return file.read(size)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a JSON object; which of two equal names is meant, nobody can know."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _check_sums(path: Path, file: BufferedReader, header: bytes, metadata: dict[str, str]) -> None:
    """Compare both sums; `file` stands behind the header."""
    total = hashlib.file_digest(file, "sha256").hexdigest()
    if metadata.get(SUM) != total or not is_sealed(header, metadata.get(HEADER_SUM, "")):
        raise InputError(
            f"{path} does not match its own checksum: at least one bit has changed since it was "
            "written; copy or download it again."
        )


def _entry(path: Path, pages: _Pages, first: int, values: dict[str, Any]) -> _Entry:
    """What a header says of a tensor; safetensors has checked that its bytes are in the file."""
    if values["dtype"] not in DTYPES:
        raise InputError(
            f"{path} holds numbers of the type {values['dtype']}, which cannot be used here; "
            f"convert them to one of {', '.join(DTYPES)}."
        )
    dtype, shape = DTYPES[values["dtype"]], tuple(values["shape"])
    # A size of nothing (0, 2**62, 2**62) passes every test of the bytes, and overflows in torch.
    if len(shape) > MAX_DIMENSIONS or math.prod(max(1, size) for size in shape) >= 2**60:
        raise ValueError("a shape that no tensor can have")
    return _Entry(pages, dtype, shape, first + values["data_offsets"][0])


def _open_shards(index: Path) -> Weights:
    """The tensors of many files, as an index says which holds which."""
    homes = read_index(index)
    entries: dict[str, _Entry] = {}
    metadata: dict[str, str] | None = None
    for shard in sorted(set(homes.values())):
        found, described = _open_file(index.with_name(shard))
        metadata = described if metadata is None else metadata
        entries |= {name: entry for name, entry in found.items() if homes.get(name) == shard}
    for name in homes.keys() - entries.keys():
        raise InputError(
            f"{index} says that {homes[name]} holds {reprlib.repr(name)}, but it does not; "
            "copy or download the model again."
        )
    return Weights(entries, metadata or {})


def read_index(path: Path, ending: str = "safetensors") -> dict[str, str]:
    """Which file beside the index holds each tensor."""
    try:
        if path.stat().st_size > MAX_INDEX:
            raise ValueError("too large to be an index")
        homes = json.loads(path.read_bytes(), object_pairs_hook=_without_repetition)["weight_map"]
        if not all(isinstance(shard, str) for shard in homes.values()):
            raise TypeError("a name that is no text")
    except MALFORMED as error:
        raise InputError(
            f"{path} is not an index of weights: it is incomplete or damaged; "
            "copy or download it again."
        ) from error
    for shard in set(homes.values()):
        if not re.fullmatch(rf"{SHARD}\.{ending}", shard):
            raise InputError(
                f"{path} names {reprlib.repr(shard)}, which is not a {ending} file beside it; "
                "copy or download the model again from a place you trust."
            )
    return dict(homes)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
