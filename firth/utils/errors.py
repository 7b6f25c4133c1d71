"""Exceptions. Every message is one sentence: what is wrong, where, and what to do.

FirthError                  exit code 1
├── UsageError              exit code 2: invalid arguments
├── InputError              a file is missing, damaged or has the wrong content
├── MismatchError           two inputs that do not fit together, such as a model and an adapter
├── NonFiniteError          a model's outputs are NaN or infinite
├── DeviceError             a GPU that failed
├── StorageError            the disk is full, or the path is not writable
├── Interrupted             exit code 130: stopped by a signal, with partial results saved
└── Diverged                no finite gradients any more (firth/training/loop.py)
"""

from __future__ import annotations

import errno
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class FirthError(Exception):
    """Base class of expected errors; the command line shows the message without a traceback."""

    exit_code = 1


class UsageError(FirthError):
    """Invalid arguments or options."""

    exit_code = 2


class InputError(FirthError):
    """An input file that is missing, damaged or has the wrong content."""


class MismatchError(FirthError):
    """Two inputs that do not fit together."""


class NonFiniteError(FirthError):
    """Outputs of a model that are NaN or infinite."""


class DeviceError(FirthError):
    """A GPU that failed: this process can no longer use it."""


class StorageError(FirthError):
    """An output file that could not be written."""


class Interrupted(FirthError):
    """A job stopped by a signal; partial results are saved."""

    exit_code = 130


def suggest(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, or list all, as the end of an error message.

    >>> suggest("loar", ["lora", "ia3"]), suggest("x", ["lora", "ia3"])
    ('did you mean lora?', 'there are lora, ia3.')
    """
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names) or 'none'}."


@contextmanager
def storage_errors(
    path: Path,
    full: str = "Free some space or choose another path.",
    denied: str = "Choose a path that you may write to.",
) -> Iterator[None]:
    """Raise a `StorageError` in place of an `OSError`.

    `full` is the advice for a full disk, `denied` for missing permission.

    >>> with storage_errors(Path("/nowhere")):
    ...     open("/nowhere/file", "w")
    Traceback (most recent call last):
    firth.utils.errors.StorageError: /nowhere cannot be written (No such file or directory). \
Choose another path.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"The disk is full: {path} could not be written. {full}") from error
        forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        advice = denied if forbidden else "Choose another path."
        why = error.strerror or error
        raise StorageError(f"{path} cannot be written ({why}). {advice}") from error


def short_path(path: object) -> str:
    r"""Return a path for a message: what is not one, such as a long text, is shortened.

    >>> short_path("runs/a"), short_path("once upon a time\n" * 99)
    ('runs/a', "'once upon a ...upon a time\\n'")
    """
    text = str(path)
    return text if len(text) < 200 and text.isprintable() else reprlib.repr(text)
