"""Read and write safetensors files, memory-mapped and safe for untrusted files.

A safetensors file is the length of the header in eight bytes, the header (JSON: type, shape and
byte range of each tensor), and the bytes of all tensors without gaps. It contains no code, and
every number in it is checked before use.

Files written by Firth have two checksums in the metadata: `crc32` of the tensors' bytes (files of
earlier versions: `sha256`), which detects any change of up to 32 neighbouring bits and nearly all
others, and `sha256_header`.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
import reprlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from firth.utils.errors import InputError, MismatchError, UsageError
from firth.utils.files import CHECKSUM_PLACEHOLDER, atomic_file, checksum_matches, embed_checksum

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
LEGACY, LEGACY_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
CRC32, SHA256, HEADER_SHA256 = "crc32", "sha256", "sha256_header"  # checksums in the metadata
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
MAX_INDEX = 100_000_000  # bytes, the limit of safetensors for headers
CHUNK_BYTES = 16 << 20  # bytes of a file in memory at a time while a tensor is copied
THREADED_BYTES = 8 << 20  # smallest copy that uses several threads
SERIAL_ELEMENTS = 1 << 15  # converted at a time by one thread; torch uses several for more
SHARD = r"[\w. -]{1,200}"  # a plain file name in the directory of the index
MALFORMED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class _Pages:
    """Two memory maps of a file: releasing pages would discard writes to them."""

    changeable: mmap.mmap  # of the tensors that callers get
    unchanged: mmap.mmap  # for copies, whose pages are released again


@dataclass(frozen=True)
class _Entry:
    """The location of a tensor."""

    pages: _Pages
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int  # in bytes, from the beginning of the file


class Weights(Mapping[str, Tensor]):
    """Named tensors in one or more safetensors files, in file order.

    A tensor is a view of memory-mapped pages: it takes no memory until it is accessed. Writing to
    it never changes the file.
    """

    def __init__(self, entries: dict[str, _Entry], metadata: dict[str, str]) -> None:
        self.metadata = metadata  # of the first file
        self._entries = entries

    @property
    def checksum(self) -> str | None:
        """The checksum of the tensors' bytes as it is stored, if Firth wrote the file."""
        return self.metadata.get(CRC32, self.metadata.get(SHA256))

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        return _tensor(entry.pages.changeable, entry.dtype, entry.shape, entry.start)

    def joined(self, names: Sequence[str]) -> Tensor | None:
        """Return a view of tensors that follow one another in a file, concatenated; else None.

        Their shapes may differ in the number of rows only.
        """
        first, *_ = entries = [self._entries[name] for name in names]
        end = first.start
        for entry in entries:
            if entry.pages is not first.pages or entry.dtype != first.dtype or entry.start != end:
                return None
            end += math.prod(entry.shape) * entry.dtype.itemsize
        rows = sum(entry.shape[0] for entry in entries)
        shape = (rows, *first.shape[1:])
        return _tensor(first.pages.changeable, first.dtype, shape, first.start)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self._entries[name].dtype

    def copy_into(self, name: str, destination: Tensor) -> None:
        """Copy a tensor into another of the same shape and any dtype and device.

        The file is read in chunks, so loading a model takes hardly more memory than the model.
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
        step = max(1, CHUNK_BYTES // max(1, row_bytes))
        for row in range(0, rows if row_bytes else 0, step):
            count, start = min(step, rows - row), entry.start + row * row_bytes
            pages = entry.pages.unchanged
            piece = _tensor(pages, entry.dtype, (count, *rest), start)
            _copy(piece, destination[row : row + count])
            page = start - start % mmap.PAGESIZE
            pages.madvise(mmap.MADV_DONTNEED, page, start + count * row_bytes - page)


def _copy(source: Tensor, destination: Tensor) -> None:
    """Copy a tensor of the CPU, with a single thread unless it is large.

    If other programs use the cores, waiting for torch's threads takes far longer than the copy:
    7 ms instead of 0.6 ms for 2 MB on 2 cores.
    """
    on_cpu = destination.device.type == "cpu"
    if source.nbytes >= THREADED_BYTES or not on_cpu or not destination.is_contiguous():
        destination.copy_(source)
    elif source.dtype == destination.dtype:
        _bytes(destination)[:] = _bytes(source)
    else:
        flat = (tensor.view(-1).split(SERIAL_ELEMENTS) for tensor in (source, destination))
        for piece, converted in zip(*flat, strict=True):
            converted.copy_(piece)


def open_weights(path: Path, *, verify: bool = False) -> Weights:
    """Open a `.safetensors` file, or the single or sharded file of a model directory.

    With `verify`, all of a file that has a checksum is read and compared with it; without, only
    its header. A truncated file is always detected.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "model.safetensors")
    >>> _ = write_weights(path, {"bias": torch.tensor([1.0, 2.0])})
    >>> weights = open_weights(path.parent)
    >>> weights.shape("bias"), weights["bias"]
    ((2,), tensor([1., 2.]))
    """
    try:
        return _open(path, verify)
    except OSError as error:
        where, why = error.filename or path, error.strerror or error
        raise InputError(f"{where} cannot be read ({why}).") from error


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors as safetensors, atomically, and return the CRC-32 checksum of their bytes.

    Tensors are converted one at a time, so this takes little memory. Callers handle `OSError`, with
    advice of their own (`storage_errors`). SHA-256 is slower than many disks: 0.37 GB/s instead of
    3 GB/s on a CPU without instructions for it.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "ones.safetensors")
    >>> write_weights(path, {"ones": torch.ones(2, dtype=torch.uint8)})
    '2fc51328'
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES or name == "__metadata__":
            raise UsageError(f"Safetensors cannot hold {name!r}, a tensor of {tensor.dtype}.")
    # The widest dtypes come first, so that every tensor is aligned.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
    size, checksum = len(_header(ordered, 0)), 0
    with atomic_file(path) as file:
        file.write(bytes(8 + size))
        for tensor in ordered.values():
            data = _bytes(tensor)
            checksum = zlib.crc32(data, checksum)
            file.write(data)
        file.seek(0)
        file.write(size.to_bytes(8, "little"))
        file.write(_header(ordered, checksum))
    return _hexadecimal(checksum)


def _header(tensors: Mapping[str, Tensor], checksum: int) -> bytes:
    """Return the header as JSON, with its own checksum first, padded to a multiple of 8 bytes."""
    placeholder = CHECKSUM_PLACEHOLDER.decode()
    about = {HEADER_SHA256: placeholder, CRC32: _hexadecimal(checksum), "format": "pt"}
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
    return embed_checksum(text + b" " * (-len(text) % 8))


def _hexadecimal(checksum: int) -> str:
    return f"{checksum:08x}"


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if not len(flat):  # its stride may be 0, which `view` refuses
        return memoryview(b"")
    data: memoryview = flat.view(torch.uint8).numpy().data
    return data


def _tensor(pages: mmap.mmap, dtype: torch.dtype, shape: tuple[int, ...], start: int) -> Tensor:
    """Return a view of mapped pages, or a copy if the tensor is not aligned."""
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    if start % dtype.itemsize:
        copied = bytearray(pages[start : start + count * dtype.itemsize])
        return torch.frombuffer(copied, dtype=dtype).reshape(shape)
    return torch.frombuffer(pages, dtype=dtype, count=count, offset=start).reshape(shape)


def _open(path: Path, verify: bool) -> Weights:
    if not path.is_dir():
        return Weights(*_open_file(path, verify))
    if (path / WHOLE).exists():
        return Weights(*_open_file(path / WHOLE, verify))
    if (path / INDEX).exists():
        return _open_shards(path / INDEX, verify)
    for name in (LEGACY, LEGACY_INDEX):
        if (path / name).exists():
            raise legacy_error(path, name)
    raise InputError(f"{path} holds no weights: there is neither {WHOLE} nor {INDEX}.")


def legacy_error(where: str | Path, name: str) -> InputError:
    """Return the error for a model that has only pickled weights."""
    return InputError(
        f"{where} holds its weights only as {name}, a legacy pickle that could run code when it is "
        "loaded; add --allow-legacy to read only its tensors and "
        "rewrite them as safetensors."
    )


def _open_file(path: Path, verify: bool) -> tuple[dict[str, _Entry], dict[str, str]]:
    """Return the tensors of one file in file order, and its metadata."""
    if not path.is_file():
        raise InputError(f"{path} is not there, or is not a file.")
    try:
        with safe_open(path, framework="numpy") as checked:
            checked.keys()
        with open(path, "rb") as file:
            header = _read_header(file)
            content = json.loads(header, object_pairs_hook=_without_repetition)
            metadata = content.pop("__metadata__", {})
            if {CRC32, SHA256, HEADER_SHA256} & metadata.keys():
                _check_sums(path, file if verify else None, header, metadata)
            mapped = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) for _ in range(2)]
        pages, first = _Pages(*mapped), 8 + len(header)
        by_offset = sorted(content.items(), key=lambda item: item[1]["data_offsets"])
        return {name: _entry(path, pages, first, values) for name, values in by_offset}, metadata
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
    """Convert the pairs of a JSON object to a dict; duplicate names are an error."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _check_sums(
    path: Path, file: BufferedReader | None, header: bytes, metadata: dict[str, str]
) -> None:
    """Verify the checksum of the header and that of the file after it, unless it is None."""
    same = checksum_matches(header, metadata.get(HEADER_SHA256, ""))
    if same and file is not None and CRC32 in metadata:
        checksum = 0
        while chunk := file.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
        same = metadata[CRC32] == _hexadecimal(checksum)
    elif same and file is not None:
        same = metadata.get(SHA256) == hashlib.file_digest(file, "sha256").hexdigest()
    if not same:
        raise InputError(
            f"{path} does not match its own checksum: at least one bit has changed since it was "
            "written; copy or download it again."
        )


def _entry(path: Path, pages: _Pages, first: int, values: dict[str, Any]) -> _Entry:
    """Parse a tensor's header entry; safetensors has already checked its byte range."""
    if values["dtype"] not in DTYPES:
        raise InputError(
            f"{path} holds tensors of the type {values['dtype']}, which is not supported; "
            f"convert them to one of {', '.join(DTYPES)}."
        )
    dtype, shape = DTYPES[values["dtype"]], tuple(values["shape"])
    # An empty shape such as (0, 2**62, 2**62) passes the byte checks, but overflows in torch.
    if len(shape) > MAX_DIMENSIONS or math.prod(max(1, size) for size in shape) >= 2**60:
        raise ValueError("a shape that no tensor can have")
    return _Entry(pages, dtype, shape, first + values["data_offsets"][0])


def _open_shards(index: Path, verify: bool) -> Weights:
    """Open the shards that an index lists."""
    homes = read_index(index)
    entries: dict[str, _Entry] = {}
    metadata: dict[str, str] | None = None
    for shard in sorted(set(homes.values())):
        found, described = _open_file(index.with_name(shard), verify)
        metadata = described if metadata is None else metadata
        entries |= {name: entry for name, entry in found.items() if homes.get(name) == shard}
    for name in homes.keys() - entries.keys():
        raise InputError(
            f"{index} says that {homes[name]} holds {reprlib.repr(name)}, but it does not; "
            "copy or download the model again."
        )
    return Weights(entries, metadata or {})


def read_index(path: Path, ending: str = "safetensors") -> dict[str, str]:
    """Read an index: the shard of each tensor."""
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
                "copy or download the model again from a trusted source."
            )
    return dict(homes)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "of a single number"
