"""Existing outputs, which are refused or replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from firth.utils.errors import UsageError


def check_output(path: str | Path, overwrite: bool) -> None:
    """Raise a `UsageError` if an output exists, unless it may be overwritten.

    An empty directory, standard output (`-`) and a device such as /dev/null can be written to.

    >>> import tempfile; path = Path(tempfile.mkdtemp(), "words.txt")
    >>> check_output(path, False); path.touch(); check_output(path, True)
    """
    out = Path(path)
    taken = any(out.iterdir()) if out.is_dir() else out.is_file() and str(path) != "-"
    if taken and not overwrite:
        raise UsageError(f"{path} exists; choose another output, or replace it with --overwrite.")


@contextmanager
def replacing_files(folder: Path, patterns: Iterable[str]) -> Iterator[None]:
    """Delete the files that match a pattern and were not written again, if the body succeeds.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> old = (folder / "old.json").touch()
    >>> with replacing_files(folder, ["*.json"]):
    ...     (folder / "new.json").touch()
    >>> [file.name for file in folder.iterdir()]
    ['new.json']
    """
    before = {file: file.stat().st_ino for pattern in patterns for file in folder.glob(pattern)}
    yield
    for file, inode in before.items():
        if file.is_file() and file.stat().st_ino == inode:  # `atomic_file` makes a new one
            file.unlink()
