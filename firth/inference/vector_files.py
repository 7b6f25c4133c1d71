"""Vectors on disk: files that grow row by row and can be opened at any moment.

A sink appends texts and their vectors. `mark` says how far it has come, and a sink that is opened
with the same rows and mark goes on from there, whatever was written behind them.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from firth.errors import Misuse
from firth.files import atomic_file

Floats = NDArray[np.float32]

VECTORS, ENDS, TEXTS = "vectors.npy", "ends.npy", "texts"  # of a folder to search in


class Sink(Protocol):
    """Where vectors go."""

    def append(self, texts: Sequence[str], vectors: Floats) -> None:
        """Write some rows more."""

    def mark(self) -> int:
        """Bring what was written to the disk; how far that is, in units of the sink's own."""

    def finish(self) -> Path:
        """All rows are there: the file that is to have the final name."""

    def close(self) -> None:
        """Let go of the files."""


class Grown:
    """A file that is appended to, cut first to what is known to be good."""

    def __init__(self, path: Path, size: int) -> None:
        self.file: BinaryIO = open(path, "r+b" if path.exists() else "w+b")
        if os.fstat(self.file.fileno()).st_size < size:
            self.file.close()
            raise EOFError(path)
        self.file.truncate(size)
        self.file.seek(size)

    def sync(self) -> int:
        """Bring everything to the disk; the size of the file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


class GrownArray(Grown):
    """An array in a `.npy` file: rows first, then the header that counts them.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "rows.npy")
    >>> array = GrownArray(path, 0, np.dtype(np.float32), (2,))
    >>> array.append(np.ones((3, 2), np.float32)); _ = array.sync()
    >>> np.load(path).shape
    (3, 2)
    >>> array.close()
    """

    def __init__(self, path: Path, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.rows, self.dtype, self.shape = rows, dtype, shape
        row = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        super().__init__(path, len(self._header()) + rows * row if rows else 0)
        self._count()

    def _count(self) -> None:
        """Let the header say how many rows there are."""
        self.file.seek(0)
        self.file.write(self._header())
        self.file.seek(0, os.SEEK_END)

    def _header(self) -> bytes:
        """Of the same length for any number of rows: NumPy leaves room for it to grow."""
        written = io.BytesIO()
        values = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(written, {**values, "shape": (self.rows, *self.shape)})
        return written.getvalue()

    def append(self, values: NDArray[Any]) -> None:
        """Write some rows more; the header does not know them before the next `sync`."""
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.rows += len(values)

    def sync(self) -> int:
        """Rows, then the header: a reader never finds fewer rows than it is told of."""
        super().sync()
        self._count()
        return super().sync()


class Npy:
    """The vectors alone, as NumPy keeps them."""

    def __init__(self, path: Path, width: int, rows: int, mark: int) -> None:
        self.path = path
        self.array = GrownArray(path, rows, np.dtype(np.float32), (width,))

    def append(self, texts: Sequence[str], vectors: Floats) -> None:
        self.array.append(vectors)

    def mark(self) -> int:
        return self.array.sync()

    def finish(self) -> Path:
        return self.path

    def close(self) -> None:
        self.array.close()


class JsonLines:
    """A line for each row, with its text; null instead of a vector that is not finite."""

    def __init__(self, path: Path, width: int, rows: int, mark: int) -> None:
        self.path = path
        self.grown = Grown(path, mark)

    def append(self, texts: Sequence[str], vectors: Floats) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            numbers = ", ".join(f"{number:.9g}" for number in vector.tolist())
            written = f"[{numbers}]" if np.isfinite(vector).all() else "null"
            line = f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": {written}}}\n'
            self.grown.file.write(line.encode())

    def mark(self) -> int:
        return self.grown.sync()

    def finish(self) -> Path:
        return self.path

    def close(self) -> None:
        self.grown.close()


class Parquet:
    """Columns `text` and `vector`; a Parquet file cannot grow, so it is put together of parts."""

    def __init__(self, path: Path, width: int, rows: int, mark: int) -> None:
        import pyarrow as pa

        self.path, self.parts = path, mark
        self.schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32(), width))])
        if not all(self._part(i).is_file() for i in range(mark)):
            raise EOFError(path)

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"part-{number:06}.parquet")

    def append(self, texts: Sequence[str], vectors: Floats) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = [
            pa.array(texts, pa.string()),
            pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        ]
        with atomic_file(self._part(self.parts)) as file:
            pq.write_table(pa.table(columns, schema=self.schema), file)
        self.parts += 1

    def mark(self) -> int:
        return self.parts

    def finish(self) -> Path:
        import pyarrow.parquet as pq

        with atomic_file(self.path) as file, pq.ParquetWriter(file, self.schema) as writer:
            for number in range(self.parts):
                writer.write_table(pq.read_table(self._part(number), schema=self.schema))
        return self.path

    def close(self) -> None:
        pass


class Searchable:
    """A folder to search in: vectors, and all texts end to end with where each one ends."""

    def __init__(self, path: Path, width: int, rows: int, mark: int) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        with ExitStack() as opened:
            self.array = GrownArray(path / VECTORS, rows, np.dtype(np.float32), (width,))
            opened.callback(self.array.close)
            self.ends = GrownArray(path / ENDS, rows, np.dtype(np.int64), ())
            opened.callback(self.ends.close)
            self.texts = Grown(path / TEXTS, mark)
            opened.callback(self.texts.close)
            self.files = opened.pop_all()

    def append(self, texts: Sequence[str], vectors: Floats) -> None:
        written = [text.encode() for text in texts]
        begin = self.texts.file.tell()
        self.array.append(vectors)
        self.ends.append(begin + np.cumsum([len(text) for text in written], dtype=np.int64))
        self.texts.file.write(b"".join(written))

    def mark(self) -> int:
        self.array.sync()
        self.ends.sync()
        return self.texts.sync()

    def finish(self) -> Path:
        return self.path

    def close(self) -> None:
        self.files.close()


SINKS: dict[str, Callable[[Path, int, int, int], Sink]] = {
    ".npy": Npy,
    ".jsonl": JsonLines,
    ".parquet": Parquet,
}


def sink_for(out: Path) -> Callable[[Path, int, int, int], Sink]:
    """What writes a file of this ending: called with path, width, rows and mark."""
    if out.is_dir():
        raise Misuse(f"--out {out} is a directory; name a file that ends in {_endings()}.")
    if out.suffix not in SINKS:
        raise Misuse(f"--out {out} has no ending that says how to write it: {_endings()}.")
    return SINKS[out.suffix]


def _endings() -> str:
    *most, last = SINKS
    return f"{', '.join(most)} or {last}"
