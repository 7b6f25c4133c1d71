"""Capabilities of devices, and the precision and kernels chosen for them.

All choices are pure functions of a `DeviceSpec`, so tests cover devices that the test machine does
not have; `device_spec` describes a device of this machine.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from firth.utils.errors import DeviceError, UsageError
from firth.utils.main_memory import free_memory

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "force-bf16", "force-fp16")
DEVICES = ("cpu", "cuda", "mps")
Device = str | torch.device | None  # None: a GPU if there is one, else the CPU
Dtype = str | torch.dtype | None  # of the weights; None: as in the checkpoint
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Flags in /proc/cpuinfo of: Sapphire Rapids and later; Cooper Lake, Zen 4 and later; Neoverse V1,
# N2 and later. Without them bf16 is emulated: up to a hundred times slower than fp32.
BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
# oneDNN honours ONEDNN_MAX_CPU_ISA, which simulates an older processor.
AVX512_BF16_ISAS = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512")
AMX_ISAS = "AVX512_CORE_AMX AVX512_CORE_AMX_FP16 AVX10_1_512_AMX AVX10_1_512_AMX_FP16".split()

logger = logging.getLogger("firth")


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """The properties of a device that precision and kernels depend on."""

    type: str = "cpu"  # cpu, cuda or mps
    compute_capability: tuple[int, int] = (0, 0)  # NVIDIA's: (7, 5) is a T4, (9, 0) an H100
    cpu_flags: frozenset[str] = frozenset()  # from /proc/cpuinfo
    triton: bool = False  # Triton is installed
    rocm: bool = False  # an AMD GPU


H100 = DeviceSpec(type="cuda", compute_capability=(9, 0), triton=True)
_assumed: DeviceSpec | None = None  # instead of every device: `assumed_device`


def has_native_bf16(spec: DeviceSpec) -> bool:
    """Return whether the device has bf16 instructions; elsewhere bf16 is emulated and slow.

    >>> has_native_bf16(DeviceSpec(type="cuda", compute_capability=(7, 5)))
    False
    """
    if spec.type == "cuda":
        return spec.compute_capability >= (8, 0)
    return spec.type == "cpu" and bool(BF16_FLAGS & spec.cpu_flags)


def has_native_fp16(spec: DeviceSpec) -> bool:
    """Return whether half precision is faster than fp32: on tensor cores, since NVIDIA's Volta."""
    return spec.type == "cuda" and spec.compute_capability >= (7, 0)


def has_triton(spec: DeviceSpec) -> bool:
    """Return whether Triton kernels, and so torch.compile, run: since NVIDIA's Volta."""
    return spec.type == "cuda" and spec.triton and spec.compute_capability >= (7, 0)


def has_tile_kernels(spec: DeviceSpec) -> bool:
    """Return whether Triton kernels that hold whole tiles are fast: on NVIDIA's Hopper.

    Its tensor cores read tiles from shared memory. On an A100 they would not fit into registers.
    """
    return has_triton(spec) and not spec.rocm and spec.compute_capability[0] == 9


def has_varlen_attention(spec: DeviceSpec) -> bool:
    """Return whether torch's variable-length attention kernels run: since NVIDIA's Ampere."""
    return spec.type == "cuda" and spec.compute_capability >= (8, 0)


def default_precision(spec: DeviceSpec) -> str:
    """Return the fastest precision that trains as well as fp32.

    >>> default_precision(DeviceSpec(type="cuda", compute_capability=(7, 5)))  # T4
    'fp16'
    >>> default_precision(DeviceSpec(cpu_flags=frozenset({"avx2"})))
    'fp32'
    """
    if has_native_bf16(spec):
        return "bf16"
    return "fp16" if has_native_fp16(spec) else "fp32"


def resolve_precision(requested: str, spec: DeviceSpec) -> str:
    """Return the requested precision if the device computes it natively, else fp32 as a fallback.

    The fallback is logged. `force-bf16` and `force-fp16` have no fallback.

    >>> resolve_precision("force-bf16", DeviceSpec())
    'bf16'
    """
    if requested not in PRECISIONS:
        raise UsageError(f"precision is one of {', '.join(PRECISIONS)}, not {requested!r}.")
    if requested == "auto":
        return default_precision(spec)
    if requested.startswith("force-") or requested == "fp32":
        return requested.removeprefix("force-")
    native = has_native_bf16(spec) if requested == "bf16" else has_native_fp16(spec)
    if not native:
        logger.warning(
            "This device (%s) has no %s instructions, so %s would be slower than fp32: falling "
            "back to fp32. Use --precision force-%s to override.",
            *(spec.type, requested, requested, requested),
        )
        return "fp32"
    return requested


def device_spec(device: torch.device) -> DeviceSpec:
    """Describe a device of this machine, or the one that is assumed instead."""
    return _assumed or _own_device_spec(device)


@contextmanager
def assumed_device(spec: DeviceSpec) -> Iterator[None]:
    """Choose precision and kernels as for another device, to trace what would run on it.

    >>> with assumed_device(H100):
    ...     device_spec(torch.device("cpu")).type
    'cuda'
    """
    global _assumed  # not a ContextVar, which torch.compile cannot follow
    before, _assumed = _assumed, spec
    try:
        yield
    finally:
        _assumed = before


def assumes_gpu() -> bool:
    """Return whether the step of a GPU is traced on this machine's CPU.

    >>> with assumed_device(H100):
    ...     assumes_gpu()
    True
    """
    return _assumed is not None and _assumed.type == "cuda"


@cache
def _own_device_spec(device: torch.device) -> DeviceSpec:
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        from firth.utils.triton_language import tl  # takes a while

        triton = tl is not None
        rocm = torch.version.hip is not None
        return DeviceSpec(type="cuda", compute_capability=capability, triton=triton, rocm=rocm)
    if device.type == "cpu":
        cpuinfo = ""  # Windows and macOS have no such file: no flags are assumed
        with suppress(OSError):
            cpuinfo = Path("/proc/cpuinfo").read_text()
        return DeviceSpec(cpu_flags=cpu_flags(cpuinfo, os.environ.get("ONEDNN_MAX_CPU_ISA", "")))
    return DeviceSpec(type=device.type)


def cpu_flags(cpuinfo: str, max_isa: str = "") -> frozenset[str]:
    """Parse the flags in /proc/cpuinfo, without those that `max_isa` disables for oneDNN.

    >>> sorted(cpu_flags("processor: 0\\nflags\\t: avx2 amx_bf16\\n"))
    ['amx_bf16', 'avx2']
    >>> sorted(cpu_flags("flags: avx2 amx_bf16", max_isa="AVX2"))
    ['avx2']
    """
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = frozenset(found[1].split()) if found else frozenset()
    if max_isa.upper() in ("", "ALL", "DEFAULT"):
        return flags
    kept = {"avx512_bf16"} if max_isa.upper() in (*AVX512_BF16_ISAS, *AMX_ISAS) else set()
    kept |= {"amx_bf16"} if max_isa.upper() in AMX_ISAS else set()
    return flags - (BF16_FLAGS - kept)


@contextmanager
def cpu_arithmetic(threads: int, onednn: bool) -> Iterator[None]:
    """Use this number of CPU threads, and oneDNN or not; the rounding of sums depends on both.

    torch turns oneDNN off for the rest of a process when a bf16 product fails in it, as on aarch64
    without bf16.
    """
    before = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(threads)
    torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.mkldnn.enabled = before[1]


def find_dtype(dtype: Dtype) -> torch.dtype | None:
    """Return torch's dtype of a name, None for "auto"; an unknown one is a usage error.

    >>> find_dtype("bfloat16"), find_dtype(torch.float16), find_dtype("auto")
    (torch.bfloat16, torch.float16, None)
    """
    if dtype == "auto":
        return None
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in DTYPES.values()):
        return dtype
    found = DTYPES.get(dtype) if isinstance(dtype, str) else None
    if found is None:
        names = ", ".join(DTYPES)
        raise UsageError(f"There is no dtype {str(dtype)!r}; known are {names} and auto.")
    return found


@contextmanager
def restored_torch_state() -> Iterator[None]:
    """Restore torch's random number generators and the current GPU afterwards.

    Also a decorator; `select_device` changes the current GPU, and a training run seeds torch.
    """
    started = torch.cuda.is_initialized()
    current = torch.cuda.current_device() if started else 0
    failure: DeviceError | None = None
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if started else ()):
            try:
                yield
            except DeviceError as error:
                failure = error
                raise
            finally:
                if torch.cuda.is_initialized():
                    torch.cuda.set_device(current)
    except torch.AcceleratorError:  # a GPU that failed has no state to restore
        if failure is None:
            raise
        raise failure from failure.__cause__


@contextmanager
def fast_matmul(device: torch.device) -> Iterator[None]:
    """Compute float32 matrix products on the TF32 units of a GPU: with float32 sums."""
    if device.type != "cuda" or allows_tf32():
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


def allows_tf32() -> bool:
    """Return whether a GPU may compute float32 matrix products on its TF32 units.

    `torch.get_float32_matmul_precision` would raise an error where this was set for one library.
    """
    return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


def select_device(requested: Device = None) -> torch.device:
    """Return the requested device, by default CUDA if available, else the CPU.

    Apple's `mps` must be requested. Raise `UsageError` if the device is not available.
    """
    try:
        device = torch.device(requested or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in DEVICES:
        raise UsageError(f"There is no device {str(requested)!r}; choose cpu, cuda or mps.")
    usable = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable[device.type]:
        raise UsageError(f"--device {requested} is not available; omit it, or choose cpu.")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # CUDA graphs are captured on the current device
    return device


def dry_run_spec(requested: Device) -> DeviceSpec:
    """Describe the device of a dry run: a GPU need not be there, and is then like an H100.

    >>> dry_run_spec("cpu").type, dry_run_spec("cuda").type
    ('cpu', 'cuda')
    """
    if str(requested).startswith("cuda") and not torch.cuda.is_available():
        return H100
    return device_spec(select_device(requested))


def available_memory(device: torch.device) -> int | None:
    """Return the free bytes of a GPU, or of main memory and swap; None if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return free_memory(swap=True) if device.type == "cpu" else None


def same_device(requested: torch.device, actual: torch.device) -> bool:
    """Return whether a tensor's device is the requested one; "cuda" is any GPU.

    >>> same_device(torch.device("cuda"), torch.device("cuda:1"))
    True
    """
    return requested.type == actual.type and requested.index in (None, actual.index or 0)
