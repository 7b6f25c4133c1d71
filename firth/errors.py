"""What can go wrong, as a person reads it: one sentence that says what, where and what to do.

FirthError                  exit 1
├── Misuse                  exit 2: the call itself cannot be right
├── InputError              what a file holds, or that it is not there
├── MismatchError           two things that do not belong together
├── StorageError            the disk is full, or the place cannot be written
├── Interrupted             exit 130: a job was asked to stop, and kept what it had
└── Diverged                a run found no finite gradient any more (firth/training/loop.py)
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class FirthError(Exception):
    """A failure that one sentence explains; the command line shows that sentence alone."""

    exit_code = 1


class Misuse(FirthError):
    """A call that cannot be right, whatever the files hold."""

    exit_code = 2


class InputError(FirthError):
    """An input that is missing, damaged or not what it should be."""


class MismatchError(FirthError):
    """Two things that do not belong together."""


class StorageError(FirthError):
    """An output that could not be written."""


class Interrupted(FirthError):
    """A job was asked to stop, and kept what it had."""

    exit_code = 130


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that nothing has: what may have been meant.

    >>> meant("loar", ["lora", "ia3"]), meant("x", ["lora", "ia3"])
    ('did you mean lora?', 'there are lora, ia3.')
    """
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}."


@contextmanager
def storage_errors(path: Path, advice: str) -> Iterator[None]:
    """Turn an operating system's refusal to write into a sentence that ends with the advice.

    >>> with storage_errors(Path("/nowhere"), "Name another."):
    ...     open("/nowhere/file", "w")
    Traceback (most recent call last):
    firth.errors.StorageError: /nowhere cannot be written (No such file or directory). Name another.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"The disk is full: {path} could not be written."
        else:
            what = f"{path} cannot be written ({error.strerror or error})."
        raise StorageError(f"{what} {advice}") from error
