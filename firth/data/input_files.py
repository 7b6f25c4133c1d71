"""Input files: files, folders, globs, object stores, standard input, Hugging Face datasets."""

from __future__ import annotations

import bz2
import glob
import gzip
import io
import lzma
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from firth.data.conll import EXTENSIONS, begins_conll
from firth.data.memory import Data, MemoryTable, Source, as_source, is_missing, table_rows
from firth.data.readers import (
    FORMATS,
    MAX_CHARS,
    ROWS,
    Bad,
    OpenFile,
    ReadOptions,
    Row,
    Tally,
    read_lines,
    read_table,
    reporting_errors,
)
from firth.data.tables import begins_json, dataset_rows
from firth.utils.errors import InputError, UsageError, short_path
from firth.utils.object_stores import file_state, find_files, is_url, open_file
from firth.utils.surrogates import without_surrogates
from firth.utils.torchrun import launched_world_size


def _zstandard(stream: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return cast(BinaryIO, io.BufferedReader(pa.CompressedInputStream(stream, "zstd"), 1 << 20))


COMPRESSIONS: dict[str, Callable[[BinaryIO], BinaryIO]] = {
    "": lambda stream: stream,
    ".gz": lambda stream: cast(BinaryIO, gzip.GzipFile(fileobj=stream)),
    ".bz2": lambda stream: cast(BinaryIO, bz2.BZ2File(stream)),
    ".xz": lambda stream: cast(BinaryIO, lzma.LZMAFile(stream)),
    ".zst": _zstandard,
}


CONVERSIONS = {  # files of other programs, by extension
    **dict.fromkeys(("xlsx", "xls", "xlsm", "ods"), "save the table as CSV (UTF-8)"),
    **dict.fromkeys(("docx", "doc", "odt", "rtf", "pdf"), "save its text as .txt (UTF-8)"),
}


@dataclass(frozen=True)
class InputFile:
    """One input file with its format."""

    name: str
    format: str
    compression: str = ""
    guess_format: bool = False  # standard input: plain text or JSONL
    memory: MemoryTable | None = field(default=None, compare=False)  # rows that are in no file
    remote_size: int = 0  # of a file in an object store: bytes when it was found

    @property
    def is_stream(self) -> bool:
        """Whether it can be read only once, like standard input or a pipe."""
        return not self.is_table and not self.is_remote and not os.path.isfile(self.name)

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return not self.is_table and is_url(self.name)

    @property
    def is_table(self) -> bool:
        """Whether it is no file but rows: of a Hugging Face dataset, or in memory."""
        return self.format in ("datasets", "memory")

    @property
    def size(self) -> int:
        """Size in bytes; 0 if unknown."""
        return os.path.getsize(self.name) if os.path.isfile(self.name) else self.remote_size

    @property
    def state(self) -> list[Any]:
        """The file's path, size and modification time, to detect changes; a table's checksum."""
        if self.is_remote:
            return [self.name, *file_state(self.name)]
        if not os.path.isfile(self.name):
            return [self.format, self.memory.sha256 if self.memory else self.name]
        status = os.stat(self.name)
        return [os.path.abspath(self.name), status.st_size, status.st_mtime_ns]

    def open(self) -> BinaryIO:
        """Open the file for reading bytes."""
        if self.is_table:
            return io.BytesIO()
        if self.is_remote:
            return open_file(self.name)
        if self.is_stream and launched_world_size() > 1:
            name = "Standard input" if self.name == "-" else self.name
            raise UsageError(
                f"{name} can be read by one process only, not by all that torchrun started; write "
                "it to a file first."
            )
        try:
            return open(0, "rb", closefd=False) if self.name == "-" else open(self.name, "rb")
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def detect_format(self, raw: BinaryIO) -> InputFile:
        """Detect JSONL on standard input: it begins with a JSON object."""
        with suppress(OSError):  # reported by the reader
            if self.guess_format and begins_json(cast(io.BufferedReader, raw).peek(1 << 13)):
                return replace(self, format="jsonl", guess_format=False)
        return self

    def documents(
        self, raw: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
    ) -> Iterator[str]:
        """Yield the texts of an opened file.

        If `bad` gets the errors of single rows, a row that is not UTF-8 is one of them; in a longer
        document, the invalid bytes are replaced.
        """
        format = self.detect_format(raw).format
        has_lines = format in ("txt", "md", "conll", "conllu")
        is_long = has_lines and reading.documents in ("block", "file")
        if bad is not None and not is_long:
            reading = replace(reading, strict=True)
        if self.is_table:
            name = self.name if self.memory is not None else f"datasets:{self.name}"
            yield from read_table(name, self.rows(raw, reading, tally, bad), reading, tally, bad)
            return
        with self._stream(raw) as stream:
            if format == "txt" and reading.format is None:
                head = cast(io.BufferedReader, stream).peek(1 << 13)
                format = "conll" if begins_conll(head) else format
            for text in FORMATS[format](OpenFile(self.name, stream, reading, tally, bad)):
                if len(text) <= MAX_CHARS:
                    yield text
                    continue
                yield from islice(_split(text, tally), 1 if reading.documents == "row" else None)

    def rows(
        self, raw: BinaryIO, reading: ReadOptions, tally: Tally, bad: Bad | None = None
    ) -> Iterator[Row]:
        """Yield the fields of each row, with its first line (Parquet, datasets: its number)."""
        if self.memory is not None:
            for number, row in enumerate(self.memory.values, 1):
                with reporting_errors(bad):
                    yield number, self.memory.named(number, row)
            return
        if self.is_table:
            yield from enumerate(dataset_rows(self.name), 1)
            return
        with self._stream(raw) as stream:
            yield from ROWS[self.format](OpenFile(self.name, stream, reading, tally, bad))

    def lines(self, raw: BinaryIO, bad: Bad | None = None) -> Iterator[tuple[int, str]]:
        """Yield the lines, numbered from 1, without newlines.

        A line that is not UTF-8 is an error; if `bad` gets it, the line is not `is_valid`.
        """
        with self._stream(raw) as stream:
            file = OpenFile(self.name, stream, ReadOptions(strict=True), Counter(), bad)
            yield from ((number, line.rstrip("\r\n")) for number, line in read_lines(file))

    def content(self, raw: BinaryIO, max_bytes: int) -> bytes:
        """Return all bytes, decompressed; raise an error if they are more than `max_bytes`."""
        with self._stream(raw) as stream:
            content = stream.read(max_bytes + 1)
        if len(content) > max_bytes:
            size = f"{max_bytes >> 20} MiB"
            raise InputError(f"{self.name} has more than {size}; split it, or use JSONL.")
        return content

    @contextmanager
    def _stream(self, raw: BinaryIO) -> Iterator[BinaryIO]:
        """Decompress the file if needed; turn errors of the decompressor into an InputError."""
        try:
            stream = COMPRESSIONS[self.compression](raw)
            if self.format != "parquet":
                _refuse_binary(self.name, stream)
            yield stream
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error) from error
        except OSError as error:
            if error.errno is None:  # from the decompressor, not the operating system
                raise self._damaged(error) from error
            raise InputError(f"{self.name} cannot be read: {error.strerror}.") from error

    def _damaged(self, error: Exception) -> InputError:
        return InputError(f"{self.name} is damaged or incomplete ({error}); download it again.")


def _split(text: str, tally: Tally) -> Iterator[str]:
    """Split a text into parts of at most MAX_CHARS characters, at spaces if possible."""
    tally["long documents cut"] += 1
    while len(text) > MAX_CHARS:
        end = text.rfind(" ", MAX_CHARS // 2, MAX_CHARS) + 1 or MAX_CHARS
        yield text[:end]
        text = text[end:]
    yield text


def _refuse_binary(name: str, stream: BinaryIO) -> None:
    head = cast(io.BufferedReader, stream).peek(1 << 13)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"{name} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8.")
    if (zero := head.find(b"\0")) >= 0:
        raise InputError(f"{name} is not text: byte {zero} is zero.")


def corpus_sources(data: Data, name: str) -> list[Source]:
    """Return paths as they are, and rows or texts in memory as one table.

    >>> corpus_sources("corpus.txt", "paths")
    ['corpus.txt']
    >>> list(*corpus_sources(["Once upon a time.", "Ha!"], "paths"))
    [{'text': 'Once upon a time.'}, {'text': 'Ha!'}]
    """
    if isinstance(data, MemoryTable):
        return [data]
    rows = [data] if isinstance(data, str | Path) else table_rows(data, name)
    first = next(iter(rows), "")
    if isinstance(first, str | Path) or is_missing(first):
        items = list(rows)
        given = [item for item in items if not is_missing(item)]
        are_strings = len(given) > 0 and all(isinstance(item, str | Path) for item in given)
        if not items or (are_strings and not _are_texts(given)):
            return items
    return [MemoryTable(f"`{name}`", rows)]


def named_data(data: Data, name: str) -> Data:
    """Return text in memory as a table called `name`; paths and named sources as they are."""
    if isinstance(data, Mapping):
        return data
    sources = corpus_sources(data, name)
    return sources[0] if sources and isinstance(sources[0], MemoryTable) else sources


def _are_texts(items: list[Any]) -> bool:
    """Return whether strings are texts: one has white space, and none is the name of a file.

    >>> _are_texts(["Once upon a time."]), _are_texts(["no_file"]), _are_texts(["no file.txt"])
    (True, False, False)
    """
    texts = [item for item in items if isinstance(item, str)]
    spaces = any(map(str.isspace, "".join(texts)))
    names_file = _names_file if len(texts) == 1 else os.path.exists
    return spaces and len(texts) == len(items) and not any(map(names_file, texts))


def _names_file(text: str) -> bool:
    known = text == "-" or text.startswith("datasets:") or _source(text, None) is not None
    is_glob = glob.has_magic(text) and "\0" not in text
    return known or os.path.exists(text) or bool(is_glob and glob.glob(text))


def as_texts(data: Data | None, name: str, reading: ReadOptions = ReadOptions()) -> list[str]:
    """Return the texts of a string, a list, a Series, a table's text column, or a `Path`.

    >>> as_texts("One text.", "texts"), as_texts([{"review": "One."}, {"review": "Two."}], "texts")
    (['One text.'], ['One.', 'Two.'])
    """
    data = [data] if isinstance(data, str) else data
    if isinstance(data, list) and all(isinstance(text, str) for text in data):
        return [without_surrogates(text) for text in data]
    source = single_input_file(as_source(data, name), reading)
    with source.open() as raw:
        return list(
            source.documents(raw, replace(reading, documents="row", strict=True), Counter())
        )


def single_input_file(path: Source, reading: ReadOptions) -> InputFile:
    """Return the single file, standard input or table of a path."""
    if not isinstance(path, MemoryTable) and os.path.isdir(path):
        raise InputError(f"{path} is a folder; name a file in it.")
    sources, _ = find_sources([path], reading)
    if len(sources) > 1:
        raise InputError(f"{path} matches {len(sources)} files; name one.")
    return sources[0]


def file_if_named(data: Data) -> Data:
    """Return a string that names a file as a `Path`, so that it is not taken for a text."""
    return Path(data) if isinstance(data, str) and _names_file(data) else data


def find_sources(
    paths: Iterable[Source] | Source, reading: ReadOptions
) -> tuple[list[InputFile], int]:
    """Resolve files, folders, globs, `-`, `datasets:NAME` and tables, in a fixed order.

    Also return the number of files in folders that were skipped for their unknown extension.
    """
    sources: list[InputFile] = []
    skipped = 0
    paths = [paths] if isinstance(paths, str | Path | MemoryTable) else list(paths)
    for given in paths:
        path = str(given)
        if not path:
            raise UsageError("A path is empty.")
        if isinstance(given, MemoryTable):
            sources.append(InputFile(path, "memory", memory=given))
            continue
        if path == "-":
            unknown = reading.format is None
            sources.append(InputFile("-", reading.format or "txt", guess_format=unknown))
            continue
        if path.startswith("datasets:"):
            sources.append(InputFile(path.removeprefix("datasets:"), "datasets"))
            continue
        if is_url(path):
            found = [_remote_source(file, reading, path) for file in find_files(path)]
            sources += [source for source in found if source]
            skipped += found.count(None)
            continue
        matches = [path] if os.path.exists(path) else sorted(glob.glob(path, recursive=True))
        if not matches:
            what = "No file matches" if glob.has_magic(path) else "There is no file or folder"
            raise InputError(f"{what} {short_path(path)}.")
        for match in matches:
            if os.path.isdir(match):
                inside = [_source(file, None) for file in _walk(match)]
                sources += [source for source in inside if source]
                skipped += inside.count(None)
            else:
                sources.append(_named_source(match, reading.format))
    if not paths:
        raise UsageError("The list of texts or files is empty.")
    if not sources:
        raise InputError(f"There is no file to read in {', '.join(map(str, paths))}.")
    unique = {(os.path.abspath(source.name), source.format): source for source in reversed(sources)}
    return list(unique.values())[::-1], skipped


def _remote_source(file: str, reading: ReadOptions, given: str) -> InputFile | None:
    """Return a file of an object store; None if it is in a folder and has an unknown extension."""
    in_folder = file != given and not glob.has_magic(given)
    source = _source(file, None) if in_folder else _named_source(file, reading.format)
    return source and replace(source, remote_size=file_state(file)[0])


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder, sorted, without hidden ones."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(root, name) for name in sorted(files) if name[0] != ".")


def _source(path: str, default: str | None) -> InputFile | None:
    stem, ending = os.path.splitext(path.lower())
    compression = ending if ending and ending in COMPRESSIONS else ""
    format = (os.path.splitext(stem)[1] if compression else ending).removeprefix(".")
    format = EXTENSIONS.get(format, format)
    format = format if format in FORMATS else default or ""
    return InputFile(path, format, compression) if format else None


def _named_source(path: str, default: str | None) -> InputFile:
    source = _source(path, default)
    ending = os.path.splitext(path.lower())[1].removeprefix(".")
    if source is None or ending in CONVERSIONS:
        todo = CONVERSIONS.get(ending, "give its format with --format")
        raise UsageError(
            f"{path} has none of the formats {', '.join(FORMATS)} (each also with "
            f"{' '.join(filter(None, COMPRESSIONS))}); {todo}."
        )
    return source
