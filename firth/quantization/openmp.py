"""Share one OpenMP runtime with torch: the threads of two runtimes compete for the same cores.

torch's own runtime (GNU libgomp, LLVM libomp or Intel libiomp5) is loaded with torch. On x86-64 its
symbols are global, so that compiled code finds them. torch's wheels for aarch64 keep them local
(libtorch_global_deps.so does not need libgomp there), and they have to be made global first.
"""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

MAPS = Path("/proc/self/maps")  # Linux: one line for each part of a file in memory
# libgomp.so.1, libgomp-947d5fa1.so.1.0.0, libomp.so.5, libiomp5.so; but not libomptarget.so
RUNTIME = re.compile(r"lib(?:gomp|omp|iomp5)(?:-\w+)?\.so(?:\.\d+)*")


def read_maps() -> str:
    """Return the list of files mapped into this process; an empty text where there is none."""
    with suppress(OSError):
        return MAPS.read_text(errors="surrogateescape")
    return ""


def find_runtime(maps: str, torch_folder: Path) -> Path | None:
    """Return the OpenMP runtime among the mapped files, torch's before any other.

    >>> find_runtime("7f00-7f01 r-xp 0 fe:00 42 /usr/lib/libgomp.so.1", Path("/site/torch")).name
    'libgomp.so.1'
    """
    paths = [Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if "/" in line]
    runtimes = [path for path in paths if RUNTIME.fullmatch(path.name)]
    # wheels bundle libraries in the package's folder, or beside it in <package>.libs
    bundled = (torch_folder, torch_folder.with_name(f"{torch_folder.name}.libs"))
    own = [path for path in runtimes if any(map(path.is_relative_to, bundled))]
    return next(iter(own or runtimes), None)


def link_flags(runtime: Path | None) -> tuple[str, ...]:
    """Return the linker's OpenMP flags: none where a loaded runtime provides the symbols."""
    return ("-fopenmp",) if runtime is None else ()


def make_global(runtime: Path) -> None:
    """Let libraries loaded from now on use the symbols of a runtime that is already loaded."""
    # RTLD_NOLOAD: fail rather than load a second runtime
    ctypes.CDLL(str(runtime), mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL)
