"""Capabilities of devices, decided from their descriptions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firth.training.config import TrainingConfig
from firth.training.runtime import resolve_auto_settings
from firth.utils.devices import (
    DeviceSpec,
    cpu_flags,
    default_precision,
    device_spec,
    has_native_bf16,
    has_triton,
    has_varlen_attention,
    resolve_precision,
    select_device,
)
from firth.utils.errors import UsageError


def gpu(major: int, minor: int) -> DeviceSpec:
    return DeviceSpec(type="cuda", compute_capability=(major, minor), triton=True)


def cpu(*flags: str) -> DeviceSpec:
    return DeviceSpec(cpu_flags=frozenset(flags))


DEVICES = {  # spec, precision, Triton, variable-length attention
    "P100": (gpu(6, 0), "fp32", False, False),
    "V100": (gpu(7, 0), "fp16", True, False),
    "T4": (gpu(7, 5), "fp16", True, False),
    "A100": (gpu(8, 0), "bf16", True, True),
    "H200": (gpu(9, 0), "bf16", True, True),
    "no Triton": (DeviceSpec(type="cuda", compute_capability=(8, 0)), "bf16", False, True),
    "Skylake": (cpu("avx2", "avx512f"), "fp32", False, False),
    "Cooper Lake": (cpu("avx512f", "avx512_bf16"), "bf16", False, False),
    "Sapphire Rapids": (cpu("avx512f", "avx512_bf16", "amx_bf16"), "bf16", False, False),
    "Neoverse N1": (cpu("asimd", "asimddp"), "fp32", False, False),
    "Neoverse V1": (cpu("asimd", "sve", "bf16"), "bf16", False, False),
    "unknown processor": (DeviceSpec(), "fp32", False, False),
    "Apple GPU": (DeviceSpec(type="mps"), "fp32", False, False),
}


@pytest.mark.parametrize("name", DEVICES)
def test_capabilities(name: str) -> None:
    spec, precision, triton, varlen = DEVICES[name]
    assert default_precision(spec) == precision
    assert has_triton(spec) is triton
    assert has_varlen_attention(spec) is varlen
    settings = resolve_auto_settings(TrainingConfig(steps=10_000), 1e18, spec)
    assert settings.precision == precision
    assert settings.compile == str(triton).lower()
    assert settings.cuda_graphs == str(spec.type == "cuda").lower()


@pytest.mark.parametrize(
    ("config", "flops", "compiled"),
    [
        (TrainingConfig(steps=10_000), 2e16, {"H200", "A100", "T4"}),
        (TrainingConfig(steps=10_000), 2e15, {"T4"}),
        (TrainingConfig(steps=10_000), 1e15, set()),
        (TrainingConfig(minutes=2), 0.0, {"H200", "A100", "T4"}),
        (TrainingConfig(minutes=0.5), 0.0, set()),
    ],
)
def test_runs_are_compiled_where_it_saves_time(
    config: TrainingConfig, flops: float, compiled: set[str]
) -> None:
    for name in ("H200", "A100", "T4"):
        settings = resolve_auto_settings(config, flops, DEVICES[name][0])
        assert settings.compile == str(name in compiled).lower(), name
        given = resolve_auto_settings(replace(config, compile="true"), flops, DEVICES[name][0])
        assert given.compile == "true"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", DEVICES)
def test_precision_falls_back_unless_forced(
    name: str, precision: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = DEVICES[name][0]
    native = has_native_bf16(spec) if precision == "bf16" else spec.compute_capability >= (7, 0)
    assert resolve_precision(precision, spec) == (precision if native else "fp32")
    assert ("slower than fp32" in caplog.text) is not native
    assert resolve_precision(f"force-{precision}", spec) == precision
    assert resolve_precision("fp32", spec) == "fp32"
    assert [r.levelname for r in caplog.records] == ["WARNING"] * (not native)
    assert (f"force-{precision}" in caplog.text) is not native
    with pytest.raises(UsageError, match="fp8"):
        resolve_precision("fp8", spec)


CPUINFO = "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16 amx_tile\nbugs :\n"


def test_cpu_flags() -> None:
    assert {"avx512_bf16", "amx_bf16"} <= cpu_flags(CPUINFO)
    assert {"avx512_bf16", "amx_bf16"} <= cpu_flags(CPUINFO, "DEFAULT")
    assert cpu_flags(CPUINFO, "AVX512_CORE_BF16") & {"avx512_bf16", "amx_bf16"} == {"avx512_bf16"}
    for older in ("SSE41", "AVX2", "AVX512_CORE"):
        assert not cpu_flags(CPUINFO, older) & {"avx512_bf16", "amx_bf16"}
    assert cpu_flags("Features\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu_flags("") == frozenset()


def test_device_names() -> None:
    assert device_spec(torch.device("cpu")).type == "cpu"
    assert select_device("cpu") == torch.device("cpu")
    for name in ("tpu9", "meta", "cuda:-1x", "xpu"):
        with pytest.raises(UsageError, match="choose cpu, cuda or mps"):
            select_device(name)


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_unavailable_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert select_device().type == "cpu"
    with pytest.raises(UsageError, match=f"--device {name} is not available"):
        select_device(name)


def test_mps_is_used_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert select_device().type == "cpu"
    assert select_device("mps").type == "mps"


WINDOWS = """
import builtins, sys, types
import torch

whole = builtins.__import__

def without(name, *rest):
    if name in ("fcntl", "resource"):
        raise ImportError(name)
    return whole(name, *rest)

locked = []
sys.modules["msvcrt"] = types.SimpleNamespace(
    LK_NBLCK=2, locking=lambda descriptor, mode, size: locked.append((mode, size))
)
for name in ("fcntl", "resource"):
    sys.modules.pop(name, None)
builtins.__import__ = without
from pathlib import Path
from firth.utils.files import locked as lock
from firth.training import runtime as machine

with lock(Path(sys.argv[1]), "writing"):
    pass
assert locked == [(2, 1)]
machine.Path = lambda path: types.SimpleNamespace(is_file=lambda: False)
assert machine.peak_memory(torch.device("cpu")) == 0
"""


def test_without_unix_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS, tmp_path / "lock"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
