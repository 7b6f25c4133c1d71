"""Read GGUF files: metadata values and tensors, most of them quantized.

A GGUF file (the format of llama.cpp) has metadata values, then shape, type and offset of each
tensor, then the tensors' bytes. Rows of quantized tensors consist of blocks: small integers with a
common scale (`gguf_blocks.py`). The header is parsed here, because every number of an untrusted
file must be checked before use.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.formats.gguf_blocks import PLAIN, dequantizer
from firth.utils.errors import InputError, MismatchError

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {  # NumPy dtype of each numeric value type
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
TEXT, LIST, SINGLE = 8, 9, 6
MAX_VALUES, MAX_TENSORS, MAX_STRINGS = 100_000, 100_000, 5_000_000  # real files have far fewer
MAX_DIMENSIONS = 4
ALIGNMENT = 32  # default alignment of tensors in bytes
DOWNLOAD_AGAIN = "copy or download it again"


class GgufDtype(NamedTuple):
    """A storage type of tensors."""

    name: str
    numbers: int  # per block
    bytes: int  # per block


# Numbers per block: number of the type, its name, bytes per block.
TABLE = {
    1: "0 F32 4, 1 F16 2, 30 BF16 2",
    32: "2 Q4_0 18, 3 Q4_1 20, 6 Q5_0 22, 7 Q5_1 24, 8 Q8_0 34, 20 IQ4_NL 18",
    256: "10 Q2_K 84, 11 Q3_K 110, 12 Q4_K 144, 13 Q5_K 176, 14 Q6_K 210, 16 IQ2_XXS 66, "
    "17 IQ2_XS 74, 18 IQ3_XXS 98, 19 IQ1_S 50, 21 IQ3_S 110, 22 IQ2_S 82, 23 IQ4_XS 136",
}
KINDS = {
    int(number): GgufDtype(name, block, int(size))
    for block, row in TABLE.items()
    for number, name, size in map(str.split, row.split(","))
}


@dataclass(frozen=True)
class TensorEntry:
    """Type, shape and location of a tensor."""

    kind: GgufDtype
    shape: tuple[int, ...]  # in PyTorch's order
    start: int  # in bytes, from the beginning of the file

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) // self.kind.numbers * self.kind.bytes


@dataclass(frozen=True)
class GgufFile:
    """An open file: its metadata values and its tensors' locations."""

    path: Path
    pages: mmap.mmap
    values: dict[str, Any]
    entries: dict[str, TensorEntry]


@dataclass(frozen=True)
class GgufWeights(Mapping[str, Tensor]):
    """The tensors of a file.

    Unquantized tensors are views of memory-mapped pages; quantized ones are dequantized to fp32.
    """

    file: GgufFile
    turned: Mapping[str, int] = field(default_factory=dict)  # permuted tensors: number of heads
    raised: frozenset[str] = frozenset()  # norm weights to which llama.cpp adds one

    def __getitem__(self, name: str) -> Tensor:
        entry = self.file.entries[name]
        if entry.kind.name in PLAIN and name not in self.turned and name not in self.raised:
            dtype, count = PLAIN[entry.kind.name], math.prod(entry.shape)
            stored = torch.frombuffer(self.file.pages, dtype=dtype, count=count, offset=entry.start)
            return stored.reshape(entry.shape)
        tensor = torch.empty(entry.shape, dtype=self.dtype(name))
        self.copy_into(name, tensor)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.entries)

    def __len__(self) -> int:
        return len(self.file.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self.file.entries[name].kind.name, torch.float32)

    def joined(self, names: Sequence[str]) -> None:
        """Return None: tensors are never viewed as one."""

    def copy_into(self, name: str, destination: Tensor) -> None:
        """Copy a tensor into another of the same shape and any dtype, on the CPU.

        Blocks are dequantized in chunks, so this takes little additional memory.
        """
        entry = self.file.entries[name]
        if tuple(destination.shape) != entry.shape:
            raise MismatchError(f"{name} has the shape {list(entry.shape)} in {self.file.path}.")
        *_, width = entry.shape
        rows = destination.detach().view(-1, width)  # (R, width)
        stored = torch.frombuffer(
            self.file.pages, dtype=torch.uint8, count=entry.bytes, offset=entry.start
        ).view(len(rows), -1)  # (R, bytes of a row)
        if heads := self.turned.get(name):
            stored = undo_permutation(stored, heads)
        dequantize, chunk_numbers = dequantizer(entry.kind.name, entry.kind.bytes, self.file.path)
        step = max(1, chunk_numbers // width)

        def convert(stored: Tensor, out: Tensor) -> None:
            direct = out.dtype == torch.float32 and out.is_contiguous()
            numbers = out if direct else torch.empty(out.shape)
            with np.errstate(all="ignore"):  # scales may be NaN or infinite
                dequantize(stored, numbers)
            if name in self.raised:
                numbers -= 1
            if not direct:
                out.copy_(numbers)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(convert, stored.split(step), rows.split(step)))
        page = entry.start - entry.start % mmap.PAGESIZE
        self.file.pages.madvise(mmap.MADV_DONTNEED, page, entry.start + entry.bytes - page)


def undo_permutation(rows: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's permutation of the rows of query and key projections.

    llama.cpp applies rotary embeddings to adjacent rows, Hugging Face to the two halves of a head,
    so llama.cpp stores the rows of the two halves alternately.

    >>> undo_permutation(torch.tensor([0, 2, 1, 3])[:, None], heads=1).flatten().tolist()
    [0, 1, 2, 3]
    """
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def open_gguf(path: Path) -> GgufFile:
    """Read the header of a file and memory-map its tensors."""
    try:
        if not path.is_file():
            raise InputError(f"{path} is not there, or is not a file.")
        with open(path, "rb") as file:
            if file.read(4) != MAGIC:
                raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF.")
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error
    try:
        values, entries = _Header(path, pages).read()
    except EOFError as error:
        raise InputError(
            f"{path} ends in the middle of its header: the file is incomplete; {DOWNLOAD_AGAIN}."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); {DOWNLOAD_AGAIN}.") from error
    _check_places(path, len(pages), entries)
    return GgufFile(path, pages, values, entries)


class _Header:
    """A parser of the header; raises EOFError at the end of the file, ValueError if invalid."""

    def __init__(self, path: Path, pages: mmap.mmap) -> None:
        self.path, self.pages, self.at = path, pages, len(MAGIC)

    def read(self) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
        """Return the metadata values and the tensors."""
        (version,) = self._take("I")
        if version not in VERSIONS:
            big = " in big-endian order" if version % 65536 == 0 else ""
            number = version >> 24 if big else version
            raise InputError(
                f"{self.path} is GGUF of version {number}{big}; only versions "
                f"{' and '.join(map(str, VERSIONS))} in little-endian order are supported: "
                "convert the model again."
            )
        tensors, values = self._take("QQ")
        self._check_count("values", values, MAX_VALUES)
        self._check_count("tensors", tensors, MAX_TENSORS)
        found: dict[str, Any] = {}
        for _ in range(values):
            name = self._new_name(found)
            found[name] = self._value(*self._take("I"))
        parts = found.get("split.count", 1)
        if parts not in (0, 1):
            raise InputError(
                f"{self.path} is one of {parts} parts of a model; join them first "
                "(llama-gguf-split --merge)."
            )
        step = found.get("general.alignment", ALIGNMENT)
        if not isinstance(step, int) or step < 8 or step & (step - 1):
            raise ValueError(f"an alignment of {step}")
        begun: dict[str, TensorEntry] = {}
        for _ in range(tensors):
            name = self._new_name(begun)
            begun[name] = self._tensor(name, step)
        first = -(-self.at // step) * step
        return found, {
            name: TensorEntry(entry.kind, entry.shape, first + entry.start)
            for name, entry in begun.items()
        }

    def _take(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{form}")
        self._need(size)
        self.at += size
        return struct.unpack_from(f"<{form}", self.pages, self.at - size)

    def _need(self, size: int) -> None:
        if size > len(self.pages) - self.at:
            raise EOFError

    def _check_count(self, what: str, count: int, limit: int) -> None:
        if count > limit:
            raise ValueError(f"its header declares {count:,} {what}")

    def _text(self) -> str:
        (size,) = self._take("Q")
        self._need(size)
        self.at += size
        return str(self.pages[self.at - size : self.at], encoding="utf-8")

    def _new_name(self, known: Mapping[str, Any]) -> str:
        name = self._text()
        if name in known:
            raise ValueError(f"{name[:80]!r} occurs twice")
        return name

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            kind, count = self._take("IQ")
            if kind == TEXT:
                self._check_count("texts in one list", count, MAX_STRINGS)
                return [self._text() for _ in range(count)]
            return self._numbers(kind, count)
        (number,) = self._numbers(kind, 1).tolist()
        # The shortest decimal: 1e-06, not 9.999999974752427e-07.
        return float(str(np.float32(number))) if kind == SINGLE else number

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        if kind not in NUMBERS:
            raise ValueError(f"a value of the unknown type {kind}")
        size = np.dtype(NUMBERS[kind]).itemsize * count
        self._need(size)
        self.at += size
        return np.frombuffer(self.pages, NUMBERS[kind], count, self.at - size)

    def _tensor(self, name: str, step: int) -> TensorEntry:
        """Parse a tensor's entry; its start is relative to the first byte of all tensors."""
        (dimensions,) = self._take("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ValueError(f"{name[:80]!r} has {dimensions} dimensions")
        shape = self._take(f"{dimensions}Q")[::-1]
        number, start = self._take("IQ")
        if number not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise InputError(
                f"{self.path} stores {name[:80]} as {_kind_name(number)}, which is not supported; "
                f"use a file in one of {known}."
            )
        kind = KINDS[number]
        if not all(shape) or math.prod(shape) >= 2**60 or shape[-1] % kind.numbers or start % step:
            raise ValueError(f"{name[:80]!r} has the invalid shape {list(shape)} or offset {start}")
        return TensorEntry(kind, shape, start)


def _kind_name(number: int) -> str:
    try:
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(number).name
    except (ImportError, ValueError):
        return f"the unknown type {number}"


def _check_places(path: Path, size: int, entries: Mapping[str, TensorEntry]) -> None:
    """Check that tensors lie in the file and do not overlap, so its size bounds the memory."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start < end:
            raise InputError(
                f"{path} is damaged ({name[:80]!r} overlaps another tensor); {DOWNLOAD_AGAIN}."
            )
        end = entry.start + entry.bytes
        if end > size:
            raise InputError(
                f"{path} is incomplete: {name[:80]} should end at byte {end:,}, but the file has "
                f"only {size:,}; {DOWNLOAD_AGAIN}."
            )
