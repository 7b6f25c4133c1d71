"""What a GGUF file holds: values with names, and tensors, most of them quantised.

A GGUF file (the format of llama.cpp) begins with the values, then says of each tensor its shape,
its kind and where its bytes lie, and ends with those bytes. Rows of quantised tensors are made of
blocks: some small integers and the scale they share. The `gguf` library turns blocks into numbers;
the header is read here, because nothing may believe a number in it before it has been checked.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.errors import InputError, MismatchError, Misuse

MAGIC, VERSIONS = b"GGUF", (2, 3)
NUMBERS = {  # how a value of each kind is stored
    **{0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4"},
    **{7: "?", 10: "<u8", 11: "<i8", 12: "<f8"},
}
TEXT, LIST, SINGLE = 8, 9, 6
MOST_VALUES, MOST_TENSORS, MOST_TEXTS = 100_000, 100_000, 5_000_000  # far beyond every file
MOST_DIMENSIONS = 4
ALIGNMENT = 32  # of the tensors' bytes, where the file does not say
PIECE = 1 << 20  # numbers that are made of blocks at a time
AGAIN = "copy or download it again"


class Kind(NamedTuple):
    """How the numbers of a tensor are stored."""

    name: str
    numbers: int  # in a block
    bytes: int  # of a block


PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    30: Kind("BF16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    3: Kind("Q4_1", 32, 20),
    6: Kind("Q5_0", 32, 22),
    7: Kind("Q5_1", 32, 24),
    8: Kind("Q8_0", 32, 34),
    10: Kind("Q2_K", 256, 84),
    11: Kind("Q3_K", 256, 110),
    12: Kind("Q4_K", 256, 144),
    13: Kind("Q5_K", 256, 176),
    14: Kind("Q6_K", 256, 210),
    16: Kind("IQ2_XXS", 256, 66),
    17: Kind("IQ2_XS", 256, 74),
    18: Kind("IQ3_XXS", 256, 98),
    19: Kind("IQ1_S", 256, 50),
    20: Kind("IQ4_NL", 32, 18),
    21: Kind("IQ3_S", 256, 110),
    22: Kind("IQ2_S", 256, 82),
    23: Kind("IQ4_XS", 256, 136),
}


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies."""

    kind: Kind
    shape: tuple[int, ...]  # rows first, as torch counts
    start: int  # in bytes, from the beginning of the file

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) // self.kind.numbers * self.kind.bytes


@dataclass(frozen=True)
class GgufFile:
    """An open file: its values, and where its tensors lie."""

    path: Path
    pages: mmap.mmap
    values: dict[str, Any]
    entries: dict[str, Entry]


@dataclass(frozen=True)
class GgufWeights(Mapping[str, Tensor]):
    """The tensors of a file, as numbers.

    Those that are stored as numbers are views of the file's pages; blocks become single precision.
    """

    file: GgufFile
    turned: Mapping[str, int] = field(default_factory=dict)  # heads whose rows llama.cpp reorders
    raised: frozenset[str] = frozenset()  # what it adds one to

    def __getitem__(self, name: str) -> Tensor:
        entry = self.file.entries[name]
        if entry.kind.name in PLAIN and name not in self.turned and name not in self.raised:
            dtype, count = PLAIN[entry.kind.name], math.prod(entry.shape)
            stored = torch.frombuffer(self.file.pages, dtype=dtype, count=count, offset=entry.start)
            return stored.reshape(entry.shape)
        made = torch.empty(entry.shape, dtype=self.dtype(name))
        self.copy_into(name, made)
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.entries)

    def __len__(self) -> int:
        return len(self.file.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return PLAIN.get(self.file.entries[name].kind.name, torch.float32)

    def copy_into(self, name: str, destination: Tensor) -> None:
        """Copy a tensor into another of the same shape, whatever its type and device.

        Blocks become numbers piece by piece, so that the file and the model are all that is ever in
        memory.
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
            stored = straight(stored, heads)
        step = max(1, PIECE // width)
        for row in range(0, len(rows), step):
            numbers = self._numbers(entry.kind, stored[row : row + step])
            rows[row : row + step] = numbers.float() - 1 if name in self.raised else numbers
        page = entry.start - entry.start % mmap.PAGESIZE
        self.file.pages.madvise(mmap.MADV_DONTNEED, page, entry.start + entry.bytes - page)

    def _numbers(self, kind: Kind, stored: Tensor) -> Tensor:
        """The numbers of some rows: (R, bytes of a row) -> (R, width)."""
        if kind.name in PLAIN:
            return stored.view(PLAIN[kind.name])
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise Misuse(
                f"{self.file.path} is quantised ({kind.name}), which needs the `gguf` library: "
                "pip install 'firth[gguf]'."
            ) from error
        with np.errstate(all="ignore"):  # scales that are no numbers stay so
            made = dequantize(stored.numpy(), GGMLQuantizationType[kind.name])
        return torch.from_numpy(made)


def straight(rows: Tensor, heads: int) -> Tensor:
    """The rows of queries or keys in the order the world has them: both halves of each head.

    llama.cpp turns neighbours where others turn the two halves of a head, so it stores the rows of
    the halves in turn.

    >>> straight(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7])[:, None], heads=2).flatten().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def open_gguf(path: Path) -> GgufFile:
    """Read the header of a file, and map its tensors into memory."""
    try:
        if not path.is_file():
            raise InputError(f"{path} is not there, or is not a file.")
        with open(path, "rb") as file:
            if file.read(4) != MAGIC:
                raise InputError(
                    f"{path} is not a GGUF file: it does not begin with the word GGUF."
                )
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error
    try:
        values, entries = _Header(path, pages).read()
    except EOFError as error:
        raise InputError(
            f"{path} ends in the middle of its header: the file is incomplete; {AGAIN}."
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); {AGAIN}.") from error
    _check_places(path, len(pages), entries)
    return GgufFile(path, pages, values, entries)


class _Header:
    """Reads on from where it stands; an EOFError where the file ends, a ValueError for nonsense."""

    def __init__(self, path: Path, pages: mmap.mmap) -> None:
        self.path, self.pages, self.at = path, pages, len(MAGIC)

    def read(self) -> tuple[dict[str, Any], dict[str, Entry]]:
        """The values and the tensors."""
        (version,) = self._take("I")
        if version not in VERSIONS:
            big = " for machines of the other byte order" if version % 65536 == 0 else ""
            number = version >> 24 if big else version
            raise InputError(
                f"{self.path} is GGUF of version {number}{big}; only versions "
                f"{' and '.join(map(str, VERSIONS))} in little-endian order can be read: "
                "convert the model anew."
            )
        tensors, values = self._take("QQ")
        self._check_count("values", values, MOST_VALUES)
        self._check_count("tensors", tensors, MOST_TENSORS)
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
        begun: dict[str, Entry] = {}
        for _ in range(tensors):
            name = self._new_name(begun)
            begun[name] = self._tensor(name, step)
        first = -(-self.at // step) * step
        return found, {
            name: Entry(entry.kind, entry.shape, first + entry.start)
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

    def _check_count(self, what: str, count: int, most: int) -> None:
        if count > most:
            raise ValueError(f"its header speaks of {count:,} {what}")

    def _text(self) -> str:
        (size,) = self._take("Q")
        self._need(size)
        self.at += size
        return str(self.pages[self.at - size : self.at], encoding="utf-8")

    def _new_name(self, known: Mapping[str, Any]) -> str:
        name = self._text()
        if name in known:
            raise ValueError(f"{name[:80]!r} stands in it twice")
        return name

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            kind, count = self._take("IQ")
            if kind == TEXT:
                self._check_count("texts in one list", count, MOST_TEXTS)
                return [self._text() for _ in range(count)]
            return self._numbers(kind, count)
        (number,) = self._numbers(kind, 1).tolist()
        # As it was before it was rounded: 1e-06, not 9.999999974752427e-07.
        return float(str(np.float32(number))) if kind == SINGLE else number

    def _numbers(self, kind: int, count: int) -> np.ndarray[Any, Any]:
        if kind not in NUMBERS:
            raise ValueError(f"a value of the unknown kind {kind}")
        size = np.dtype(NUMBERS[kind]).itemsize * count
        self._need(size)
        self.at += size
        return np.frombuffer(self.pages, NUMBERS[kind], count, self.at - size)

    def _tensor(self, name: str, step: int) -> Entry:
        """What the header says of a tensor; its place counts from the first byte of them all."""
        (dimensions,) = self._take("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"{name[:80]!r} has {dimensions} dimensions")
        shape = self._take(f"{dimensions}Q")[::-1]
        number, start = self._take("IQ")
        if number not in KINDS:
            known = ", ".join(kind.name for kind in KINDS.values())
            raise InputError(
                f"{self.path} stores {name[:80]} as {_kind_name(number)}, which cannot be read; "
                f"take a file in one of {known}."
            )
        kind = KINDS[number]
        if not all(shape) or math.prod(shape) >= 2**60 or shape[-1] % kind.numbers or start % step:
            raise ValueError(f"{name[:80]!r} cannot have the shape {list(shape)} or its place")
        return Entry(kind, shape, start)


def _kind_name(number: int) -> str:
    try:
        from gguf import GGMLQuantizationType

        return GGMLQuantizationType(number).name
    except (ImportError, ValueError):
        return f"the unknown kind {number}"


def _check_places(path: Path, size: int, entries: Mapping[str, Entry]) -> None:
    """Every tensor must lie in the file, and none in another, or little bytes give many numbers."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start < end:
            raise InputError(f"{path} is damaged ({name[:80]!r} lies in another tensor); {AGAIN}.")
        end = entry.start + entry.bytes
        if end > size:
            raise InputError(
                f"{path} is incomplete: {name[:80]} should end at byte {end:,}, but the file has "
                f"only {size:,}; {AGAIN}."
            )
