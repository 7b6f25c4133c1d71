"""Files of vectors that grow row by row and are readable at any time.

A writer appends texts and their vectors. `mark` returns its position; a writer opened with these
rows and this mark continues from there and overwrites anything after it.
"""

from __future__ import annotations

import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from firth.utils.errors import UsageError
from firth.utils.files import atomic_file

Floats = NDArray[np.float32]

VECTORS, ENDS, TEXTS = "vectors.npy", "ends.npy", "texts"  # files of a search index


class AppendableFile:
    """A file opened for appending, truncated to its last known size."""

    def __init__(self, path: Path, size: int) -> None:
        self.file: BinaryIO = open(path, "r+b" if path.exists() else "w+b")
        if os.fstat(self.file.fileno()).st_size < size:
            self.file.close()
            raise EOFError(path)
        self.file.truncate(size)
        self.file.seek(size)

    def sync(self) -> int:
        """Flush to disk and return the size of the file."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        self.file.close()


class AppendableArray(AppendableFile):
    """An array in a `.npy` file; the header is updated after the rows.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "rows.npy")
    >>> array = AppendableArray(path, 0, np.dtype(np.float32), (2,))
    >>> array.append(np.ones((3, 2), np.float32)); _ = array.sync()
    >>> np.load(path).shape
    (3, 2)
    >>> array.close()
    """

    def __init__(self, path: Path, rows: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.rows, self.dtype, self.shape = rows, dtype, shape
        row = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        super().__init__(path, len(self._header()) + rows * row if rows else 0)
        self._write_header()

    def _write_header(self) -> None:
        """Write the number of rows into the header."""
        self.file.seek(0)
        self.file.write(self._header())
        self.file.seek(0, os.SEEK_END)

    def _header(self) -> bytes:
        """Return the header; NumPy pads it to one length for any number of rows."""
        header = io.BytesIO()
        values = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(header, {**values, "shape": (self.rows, *self.shape)})
        return header.getvalue()

    def append(self, values: NDArray[Any]) -> None:
        """Append rows; the header counts them from the next `sync` on."""
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.rows += len(values)

    def sync(self) -> int:
        """Flush rows, then the header, so that the header never counts missing rows."""
        super().sync()
        self._write_header()
        return super().sync()


class VectorWriter(ABC):
    """Appends texts and vectors to files."""

    def __init__(self, path: Path, *files: AppendableFile) -> None:
        self.path, self.files = path, files

    @abstractmethod
    def append(self, texts: Sequence[str | None], vectors: Floats) -> None:
        """Append rows."""

    def mark(self) -> int:
        """Flush to disk and return the position, in units of the writer."""
        return [file.sync() for file in self.files][-1]

    def finish(self) -> Path:
        """Complete the file and return its path."""
        return self.path

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


class NpyWriter(VectorWriter):
    """Writes the vectors only, as a NumPy array."""

    def __init__(self, path: Path, dimension: int, rows: int, mark: int) -> None:
        self.array = AppendableArray(path, rows, np.dtype(np.float32), (dimension,))
        super().__init__(path, self.array)

    def append(self, texts: Sequence[str | None], vectors: Floats) -> None:
        self.array.append(vectors)


class JsonlWriter(VectorWriter):
    """Writes one JSON object per row with text and vector; null for a non-finite vector."""

    def __init__(self, path: Path, dimension: int, rows: int, mark: int) -> None:
        self.lines = AppendableFile(path, mark)
        super().__init__(path, self.lines)

    def append(self, texts: Sequence[str | None], vectors: Floats) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            values = ", ".join(f"{number:.9g}" for number in vector.tolist())
            value = f"[{values}]" if np.isfinite(vector).all() else "null"
            line = f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": {value}}}\n'
            self.lines.file.write(line.encode())


class ParquetWriter(VectorWriter):
    """Writes columns `text` and `vector`, in parts that `finish` merges: Parquet cannot grow.

    A vector that is not finite is null.
    """

    def __init__(self, path: Path, dimension: int, rows: int, mark: int) -> None:
        import pyarrow as pa

        super().__init__(path)
        self.parts = mark
        self.schema = pa.schema(
            # Lists of any size: pyarrow 25 cannot read null in a column of lists of one size.
            [("text", pa.string()), ("vector", pa.list_(pa.float32()))]
        )
        if not all(self._part(i).is_file() for i in range(mark)):
            raise EOFError(path)

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"part-{number:06}.parquet")

    def append(self, texts: Sequence[str | None], vectors: Floats) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        columns = [
            pa.array(texts, pa.string()),
            pa.ListArray.from_arrays(
                np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1],
                flat,
                mask=pa.array(~np.isfinite(vectors).all(axis=1)),
            ),
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


class IndexWriter(VectorWriter):
    """Writes a search index: vectors, concatenated texts, and the end of each text."""

    def __init__(self, path: Path, dimension: int, rows: int, mark: int) -> None:
        path.mkdir(exist_ok=True)
        with ExitStack() as opened:
            self.array = AppendableArray(path / VECTORS, rows, np.dtype(np.float32), (dimension,))
            opened.callback(self.array.close)
            self.ends = AppendableArray(path / ENDS, rows, np.dtype(np.int64), ())
            opened.callback(self.ends.close)
            self.texts = AppendableFile(path / TEXTS, mark)
            opened.pop_all()
        super().__init__(path, self.array, self.ends, self.texts)

    def append(self, texts: Sequence[str | None], vectors: Floats) -> None:
        encoded = [(text or "").encode() for text in texts]
        begin = self.texts.file.tell()
        self.array.append(vectors)
        self.ends.append(begin + np.cumsum([len(text) for text in encoded], dtype=np.int64))
        self.texts.file.write(b"".join(encoded))


WRITERS: dict[str, Callable[[Path, int, int, int], VectorWriter]] = {
    ".npy": NpyWriter,
    ".jsonl": JsonlWriter,
    ".parquet": ParquetWriter,
}


def writer_for(out: Path) -> Callable[[Path, int, int, int], VectorWriter]:
    """Return the writer class for a file suffix."""
    if out.is_dir():
        raise UsageError(f"--out {out} is a directory; name a file that ends in {_suffixes()}.")
    if out.suffix not in WRITERS:
        raise UsageError(f"--out {out} has an unknown suffix; use {_suffixes()}.")
    return WRITERS[out.suffix]


def _suffixes() -> str:
    *others, last = WRITERS
    return f"{', '.join(others)} or {last}"
