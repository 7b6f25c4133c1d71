"""Files in object stores, through fsspec: `s3://`, `gs://` and `hf://`.

Credentials and endpoints are those of the store's own library: for S3 the variables AWS_* and
`~/.aws`. Local copies are in the folder of FIRTH_CACHE, by default `~/.cache/firth`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from firth.utils.errors import FirthError, InputError, StorageError, UsageError

PACKAGES = {"s3": "firth[s3]", "gs": "gcsfs", "hf": "huggingface_hub"}  # by scheme
_URL = re.compile(rf"({'|'.join(PACKAGES)})://.+")
CACHE_FOLDER = "FIRTH_CACHE"  # environment variable


def is_url(path: object) -> bool:
    """Tell whether a path is in an object store.

    >>> is_url("s3://bucket/text.jsonl"), is_url("text.jsonl")
    (True, False)
    """
    return isinstance(path, str) and _URL.match(path) is not None


def cache_folder() -> Path:
    """Return the folder of local copies."""
    return Path(os.environ.get(CACHE_FOLDER) or "~/.cache/firth").expanduser()


@cache
def _file_system(scheme: str, process: int) -> Any:
    """Return the file system of a scheme; a forked process needs its own connections."""
    import fsspec

    try:
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        package = PACKAGES[scheme]
        raise UsageError(f"{scheme}:// needs a package: pip install '{package}'.") from error


def file_system(url: str) -> Any:
    """Return the fsspec file system of a URL."""
    return _file_system(url.partition(":")[0], os.getpid())


@contextmanager
def store_errors(url: str, writing: bool = False) -> Iterator[None]:
    """Raise an `InputError`, or a `StorageError` when writing, in place of a store's error."""
    kind = StorageError if writing else InputError
    try:
        yield
    except FirthError:
        raise
    except FileNotFoundError as error:
        raise kind(f"There is no {url}.") from error
    except Exception as error:  # each library has its own
        what = "written" if writing else "read"
        reason = str(error).rstrip(".") or type(error).__name__
        raise kind(f"{url} cannot be {what}: {reason}.") from error


def open_file(url: str) -> BinaryIO:
    """Open a file for reading bytes as they are needed."""
    with store_errors(url):
        raw = file_system(url).open(url, "rb", block_size=8 << 20)
        return cast(BinaryIO, io.BufferedReader(raw, 1 << 20))


def file_state(url: str) -> tuple[int, str]:
    """Return the size of a file in bytes, and a mark that changes with its content."""
    with store_errors(url):
        info = file_system(url).info(url)
    marks = ("ETag", "etag", "blob_id", "mtime", "LastModified")
    return int(info["size"] or 0), str(next((info[key] for key in marks if info.get(key)), ""))


def exists(url: str) -> bool:
    """Tell whether there is a file or folder."""
    with store_errors(url):
        return bool(file_system(url).exists(url))


def find_files(url: str) -> list[str]:
    """Return a file, the files of a folder, or those that match a glob, sorted.

    As in a local folder, files come before those of subfolders, and hidden ones are left out.
    """
    store, scheme = file_system(url), url.partition(":")[0]
    with store_errors(url):
        if any(mark in url for mark in "*?["):
            found = [path for path in store.glob(url) if not store.isdir(path)]
        elif store.isdir(url):
            found = [path for path in store.find(url) if not _is_hidden(path, url)]
        else:
            store.info(url)
            return [url]
    return [f"{scheme}://{path}" for path in sorted(found, key=_walk_order)]


def _is_hidden(path: str, folder: str) -> bool:
    below = path.removeprefix(folder.partition("://")[2].rstrip("/") + "/")
    return any(name.startswith(".") for name in below.split("/")) or path.endswith("/")


def _walk_order(path: str) -> list[tuple[bool, str]]:
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def read_bytes(url: str, start: int | None = None, end: int | None = None) -> bytes:
    """Read a file, or a range of its bytes."""
    with store_errors(url):
        return bytes(file_system(url).cat_file(url, start=start, end=end))


def download(url: str, folder: Path, *, without: str = "") -> None:
    """Copy the files of a folder, except those whose names end with `without`."""
    store = file_system(url)
    with store_errors(url):
        names = [path.rpartition("/")[2] for path in store.ls(url, detail=False)]
    for name in sorted(filter(None, names)):
        if not without or not name.endswith(without):
            with store_errors(f"{url}/{name}"):
                store.get_file(f"{url}/{name}", str(folder / name))


def upload(folder: Path, url: str, last: str) -> None:
    """Copy the files of a folder; the file `last`, which marks the copy as complete, at the end."""
    store = file_system(url)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    for name in [*(name for name in names if name != last), last]:
        with store_errors(f"{url}/{name}", writing=True):
            store.put_file(str(folder / name), f"{url}/{name}")


def remove(url: str) -> None:
    """Remove a folder with all that is in it, if it exists."""
    store = file_system(url)
    with store_errors(url, writing=True):
        if store.exists(url):
            store.rm(url, recursive=True)


def folders(url: str) -> list[str]:
    """Return the names of the folders in a folder; none if it does not exist."""
    store = file_system(url)
    with store_errors(url):
        if not store.exists(url):
            return []
        rows = store.ls(url, detail=True)
    return sorted(row["name"].rstrip("/").rpartition("/")[2] for row in rows if _is_folder(row))


def _is_folder(row: dict[str, Any]) -> bool:
    return bool(row["type"] == "directory")
