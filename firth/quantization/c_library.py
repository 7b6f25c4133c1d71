"""Compile `step.c` for this machine at first use and load it; where that fails, torch is used.

The compiled library is cached in `~/.cache/firth`, keyed by its source, the headers beside it,
compiler, flags and processor. The environment variable FIRTH_NATIVE=0 turns it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock

import torch

from firth.quantization.openmp import find_runtime, link_flags, make_global, read_maps

SOURCE = Path(__file__).with_name("step.c")
DISABLE_VARIABLE = "FIRTH_NATIVE"
# Sums keep their order, except in loops that say otherwise: logits do not depend on the batch.
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")
# By the names of `platform.machine()`, on Linux and on macOS: on ARM, -march=native would choose
# the instructions but not the scheduling, and not every compiler knows it.
NATIVE_FLAGS = {
    **dict.fromkeys(("x86_64", "amd64"), ("-march=native",)),
    **dict.fromkeys(("aarch64", "arm64"), ("-mcpu=native",)),
}
COMPILE_TIMEOUT = 60  # seconds
LOGGER = logging.getLogger("firth")
_LOCK = Lock()  # several threads may generate first at the same time


class Unavailable(Exception):
    """Raised with the reason why there is no compiled library."""

    level = logging.WARNING


class NoCompiler(Unavailable):
    """Raised without a C compiler: not an error, generation is only slower."""

    level = logging.INFO


def load_library() -> ctypes.CDLL | None:
    """Return the compiled functions, or None where they are unavailable."""
    result = _find()
    return None if isinstance(result, str) else result


def unavailable_reason() -> str | None:
    """Return the reason why `load_library()` is None, or None where there is a library."""
    result = _find()
    return result if isinstance(result, str) else None


def compiler() -> str | None:
    """Return the path of the C compiler, if there is one."""
    path = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return path if os.name == "posix" else None


def compile_flags(machine: str) -> tuple[str, ...]:
    """Return the compiler flags for a processor by its name in `platform.machine()`.

    >>> compile_flags("aarch64")[0], compile_flags("x86_64")[0]
    ('-mcpu=native', '-march=native')
    """
    return (*NATIVE_FLAGS.get(machine.lower(), ()), *FLAGS)


def load(source: Path) -> ctypes.CDLL:
    """Load a C file, compiled unless it was before; raise Unavailable where that fails."""
    if (command := compiler()) is None:
        raise NoCompiler("there is no C compiler (cc, gcc or clang)")
    runtime = find_runtime(read_maps(), Path(torch.__file__).resolve().parent)
    try:
        path = _compiled(source, command, link_flags(runtime))
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"{command} failed: {_first_error(error.stderr)}") from error
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # no home, no disk space
        raise Unavailable(f"it could not be compiled: {error}") from error
    try:
        if runtime is not None:
            make_global(runtime)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"it could not be loaded: {error}") from error


def _find() -> ctypes.CDLL | str:
    """Return the library, or the reason why there is none."""
    if os.environ.get(DISABLE_VARIABLE) == "0":
        return f"{DISABLE_VARIABLE}=0 is set"
    with _LOCK:
        return _load_step()


@cache
def _load_step() -> ctypes.CDLL | str:
    try:
        return _declared(load(SOURCE))
    except Unavailable as error:
        reason = " ".join(str(error).split())
        LOGGER.log(error.level, "Generating with torch instead of the C step: %s.", reason)
        return reason


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    library.firth_step.restype = None
    library.firth_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.firth_generate.restype = ctypes.c_int64
    library.firth_generate.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int]
    return library


def _compiled(source: Path, compiler: str, link: tuple[str, ...]) -> Path:
    """Return the library's path, compiled unless it is there; other processes may do the same."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, timeout=COMPILE_TIMEOUT, check=True
    )
    flags = compile_flags(platform.machine())
    sources = [file.read_bytes() for file in (source, *sorted(source.parent.glob("*.h")))]
    key = (version.stdout, " ".join((*flags, *link)).encode(), _processor().encode())
    digest = hashlib.sha256(b"\0".join((*sources, *key))).hexdigest()
    path = _folder() / f"{source.stem}-{digest[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built, object_file = Path(folder) / path.name, Path(folder) / "step.o"
            for command in (
                [compiler, *flags, "-c", str(source), "-o", str(object_file)],
                [compiler, "-shared", *link, str(object_file), "-o", str(built), "-lm"],
            ):
                subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT, check=True)
            with built.open("rb") as file:
                os.fsync(file.fileno())
            built.replace(path)
    return path


def _first_error(stderr: bytes) -> str:
    """Return the first error line of a compiler's output."""
    lines = stderr.decode(errors="replace").splitlines() or ["no error message"]
    return next((line for line in lines if "error" in line.lower()), lines[0])


def _folder() -> Path:
    """Return the cache folder; nobody else may write there, for its files are executed."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firth"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")
    return folder


def _processor() -> str:
    """Return the processor's features: several machines may share a home directory."""
    with suppress(OSError):
        fields = r"^(?:flags|Features|CPU implementer|CPU part)\s*:.*$"
        if found := re.findall(fields, Path("/proc/cpuinfo").read_text(), re.M):
            return "\n".join(sorted(set(found)))
    return f"{platform.machine()} {platform.processor()}"
