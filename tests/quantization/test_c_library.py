"""The C step is compiled once, or else torch does its work and the log says why."""

from __future__ import annotations

import ctypes
import logging
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firth.inference.generation.generation_config import GenerationConfig
from firth.inference.generation.token_generation import generate
from firth.models.kv_cache import KVCache
from firth.quantization import c_decoder as decoder
from firth.quantization import c_library as library
from tests.models.small import KINDS, build
from tests.quantization import needs_native

THREADS = """
#include <omp.h>
int threads(void) {
    int count = 0;
#pragma omp parallel num_threads(2) reduction(+ : count)
    count += omp_get_thread_num() >= 0;
    return count;
}
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Let the library be searched for again, with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(library.DISABLE_VARIABLE, "1")
    library._load_step.cache_clear()
    yield tmp_path / "firth"
    library._load_step.cache_clear()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="firth")
    return caplog


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_flags_are_those_of_the_processor() -> None:
    native = {"x86_64": "-march=native", "AMD64": "-march=native"}
    native |= {"aarch64": "-mcpu=native", "arm64": "-mcpu=native"}  # Linux, macOS
    for machine, flag in native.items():
        assert library.compile_flags(machine) == (flag, *library.FLAGS)
    assert library.compile_flags("riscv64") == library.FLAGS


def test_it_is_compiled_once_where_any_code_with_openmp_is(fresh: Path, tmp_path: Path) -> None:
    """So that a mistake in step.c is no reason to skip all other tests."""
    try:
        threads = library.load(written(tmp_path / "threads.c", THREADS))
    except library.Unavailable as error:
        pytest.skip(f"{error}.")
    assert threads.threads() == 2
    assert isinstance(library.load_library(), ctypes.CDLL), library.unavailable_reason()
    assert library.unavailable_reason() is None
    made = {path: path.stat().st_mtime_ns for path in fresh.iterdir()}
    assert len(made) == 2
    library._load_step.cache_clear()
    assert library.load_library() is not None
    assert {path: path.stat().st_mtime_ns for path in fresh.iterdir()} == made


@needs_native
def test_a_changed_header_compiles_again(fresh: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "two.c", '#include "two.h"\nint two(void) { return TWO; }\n')
    for value in (2, 22):
        written(tmp_path / "two.h", f"#define TWO {value}\n")
        assert library.load(source).two() == value
    assert len(list(fresh.iterdir())) == 2


@needs_native
def test_other_links_are_other_files(fresh: Path, tmp_path: Path) -> None:
    """A library linked to a runtime of its own is not used where torch's is loaded."""
    compiler, source = str(library.compiler()), written(tmp_path / "threads.c", THREADS)
    paths = {library._compiled(source, compiler, link) for link in ((), ("-fopenmp",))}
    assert len(paths) == 2
    assert paths == {*fresh.iterdir()}


def test_it_can_be_turned_off(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(library.DISABLE_VARIABLE, "0")
    assert library.load_library() is None
    assert library.DISABLE_VARIABLE in str(library.unavailable_reason())
    assert not logged.records
    assert not fresh.exists()


@pytest.mark.parametrize("compiler", [None, "/bin/false", "/nowhere/cc"])
def test_without_a_compiler_torch_does_it(
    compiler: str | None,
    fresh: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    network = build(KINDS["gpt2"]).eval()
    for _ in range(2):
        assert decoder.make_c_decoder(network, KVCache.empty(network.config, 1, 8)) is None
        assert generate(
            network, [[5, 9], [31]], GenerationConfig(max_new_tokens=4), eos_token_id=None
        )
    [record] = logged.records
    assert record.name == "firth"
    assert record.levelno == (logging.INFO if compiler is None else logging.WARNING)
    assert str(library.unavailable_reason()) in record.getMessage()
    assert (compiler or "no C compiler") in record.getMessage()


@pytest.mark.parametrize("trouble", ["no home", "a folder of others"])
def test_where_nothing_can_be_kept_torch_does_it(
    trouble: str, fresh: Path, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library, "compiler", lambda: sys.executable)  # has a --version, too
    if trouble == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(Path, "home", homeless)
    else:
        fresh.mkdir()
        fresh.chmod(0o777)
    assert library.load_library() is None
    [record] = logged.records
    assert ("home" if trouble == "no home" else str(fresh)) in record.getMessage()


@needs_native
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("#include <no_such_header.h>\n", "no_such_header.h"),
        ("int no_such_function(void);\nint f(void) { return no_such_function(); }\n", "loaded"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Elsewhere the linker finds out.")
def test_the_log_says_once_what_failed(
    source: str,
    reason: str,
    fresh: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(library, "SOURCE", written(tmp_path / "step.c", source))
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: library.load_library(), range(8))) == {None}
    [record] = logged.records
    assert record.levelno == logging.WARNING
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()
