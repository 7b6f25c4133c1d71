"""One OpenMP runtime is shared with torch, wherever torch has loaded it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firth.quantization import c_library as library
from firth.quantization.openmp import find_runtime, link_flags, read_maps
from tests.quantization import needs_native

TORCH = Path("/env/site-packages/torch")


def mapped(*paths: str) -> str:
    """Write lines of /proc/self/maps: each file has two segments, with other memory between."""
    line = "7f3c0a000000-7f3c0a{:06x} {} 00000000 fe:00 1234      {}\n"
    segments = ("r--p", "r-xp")
    files = (line.format(i, kind, path) for i, path in enumerate(paths) for kind in segments)
    other = "55d0c8e00000-55d0c8e21000 rw-p 00000000 00:00 0 {}\n"
    return other.format("         [heap]") + "".join(files) + other.format("")


@pytest.mark.parametrize(
    "path",
    [
        "/env/site-packages/torch/lib/libgomp.so.1",
        "/env/site-packages/torch.libs/libgomp-947d5fa1.so.1.0.0",
        "/usr/lib/llvm-16/lib/libomp.so.5",
        "/opt/conda envs/lib/libiomp5.so",
    ],
)
def test_a_loaded_runtime_is_used_and_not_linked(path: str) -> None:
    runtime = find_runtime(mapped("/usr/lib/libc.so.6", path, "/usr/lib/libm.so.6"), TORCH)
    assert runtime == Path(path)
    assert link_flags(runtime) == ()


@pytest.mark.parametrize(
    "paths",
    [
        (),
        ("/usr/lib/libc.so.6", "/usr/lib/libomptarget.so.16", "/usr/lib/libarm_compute.so"),
        ("/usr/lib/libgomp.so.1 (deleted)",),
        ("/home/libgomp.so.1/data.bin",),
    ],
)
def test_without_a_loaded_runtime_one_is_linked(paths: tuple[str, ...]) -> None:
    assert find_runtime(mapped(*paths), TORCH) is None
    assert find_runtime("", TORCH) is None  # macOS has no such list
    assert link_flags(None) == ("-fopenmp",)


@pytest.mark.parametrize("own", [f"{TORCH}/lib/libgomp.so.1", f"{TORCH}.libs/libgomp-1a.so.1"])
def test_torch_s_runtime_comes_before_others(own: str) -> None:
    other = "/env/site-packages/scikit_learn.libs/libgomp-2b.so.1"
    for paths in ((own, other), (other, own)):
        assert find_runtime(mapped(*paths), TORCH) == Path(own)


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has /proc/self/maps.")
def test_torch_s_runtime_is_found_in_this_process() -> None:
    import torch

    assert find_runtime(read_maps(), Path(torch.__file__).resolve().parent) is not None


LOCAL = """
import ctypes, sys
from pathlib import Path
from firth.quantization.openmp import find_runtime, make_global, read_maps

runtime, user = sys.argv[1:]
ctypes.CDLL(runtime)  # RTLD_LOCAL, as torch's wheels for aarch64 load theirs
try:
    ctypes.CDLL(user)
except OSError as error:
    print(error)
found = find_runtime(read_maps(), Path(runtime).parent)
make_global(found)
print(found)
print(ctypes.CDLL(user).number())
"""


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has /proc/self/maps.")
def test_local_symbols_become_global(tmp_path: Path) -> None:
    """With a runtime of our own, in a process without torch."""
    sources = {
        "libgomp-0f.so.1": "int omp_get_thread_num(void) { return 42; }",
        "user.so": "int omp_get_thread_num(void);int number(void) { return omp_get_thread_num(); }",
    }
    for name, source in sources.items():
        command = [str(library.compiler()), "-shared", "-fPIC", "-x", "c", "-", "-o", name]
        subprocess.run(command, input=source.encode(), cwd=tmp_path, check=True)
    paths = [str(tmp_path.resolve() / name) for name in sources]
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, *paths], capture_output=True, text=True, check=True
    )
    error, found, number = done.stdout.splitlines()
    assert "undefined symbol: omp_get_thread_num" in error
    assert found == paths[0]
    assert number == "42"


WITH_TORCH = """
import ctypes
usual = ctypes.CDLL
ctypes.CDLL = lambda name, mode=0, **more: usual(name, mode & ~ctypes.RTLD_GLOBAL, **more)
import torch
ctypes.CDLL = usual

from firth.quantization import c_library as library, openmp
print(library.unavailable_reason())
mapped = [line.split(maxsplit=5)[-1] for line in openmp.read_maps().splitlines()]
print(len({path for path in mapped if openmp.RUNTIME.fullmatch(path.rsplit("/", 1)[-1])}))
"""


@needs_native
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has /proc/self/maps.")
def test_it_loads_where_torch_keeps_its_runtime_local() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_TORCH], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["None", "1"]
