"""The C of `step.c`, compiled for this machine when it is first needed; without a compiler, none.

What was compiled is kept in `~/.cache/firth`, by what it was compiled from, with and for. The
environment variable FIRTH_NATIVE=0 does without it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (what is loaded finds OpenMP there)

SOURCE = Path(__file__).with_name("step.c")
OFF = "FIRTH_NATIVE"
# Sums may be added up in any order, as torch does it; nothing else of arithmetic is loosened.
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-fPIC", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
)
SECONDS = 60  # that a compiler may take


def library() -> ctypes.CDLL | None:
    """The compiled functions, or None where they cannot be had."""
    return None if os.environ.get(OFF) == "0" else _library()


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return found if os.name == "posix" else None


@cache
def _library() -> ctypes.CDLL | None:
    with suppress(OSError, RuntimeError, subprocess.SubprocessError):  # no home, no room, no luck
        if (found := compiler()) is not None:
            return _declared(ctypes.CDLL(str(_compiled(found))))
    return None


def _declared(found: ctypes.CDLL) -> ctypes.CDLL:
    found.firth_step.restype = None
    found.firth_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    found.firth_write.restype = ctypes.c_int64
    found.firth_write.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int]
    return found


def _compiled(compiler: str) -> Path:
    """The library, compiled unless it is there; others may be doing the same at the same time."""
    told = subprocess.run([compiler, "--version"], capture_output=True, timeout=SECONDS, check=True)
    what = (SOURCE.read_bytes(), told.stdout, " ".join(FLAGS).encode(), _processor().encode())
    name = hashlib.sha256(b"\0".join(what)).hexdigest()[:16]
    place = _folder() / f"step-{name}.so"
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            made, parts = Path(folder) / place.name, Path(folder) / "step.o"
            # OpenMP is not named here: its functions are to be those that torch has loaded. Threads
            # of two such libraries would be in each other's way.
            for command in (
                [compiler, *FLAGS, "-c", str(SOURCE), "-o", str(parts)],
                [compiler, "-shared", str(parts), "-o", str(made), "-lm"],
            ):
                subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
            with made.open("rb") as file:
                os.fsync(file.fileno())
            made.replace(place)
    return place


def _folder() -> Path:
    """Where it is kept; nobody else may write there, for what is there is run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firth"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others.")
    return folder


def _processor() -> str:
    """What the processor can do: a home may be shared by several machines."""
    with suppress(OSError):
        if found := re.search(r"^(flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.M):
            return found[0]
    return f"{platform.machine()} {platform.processor()}"
