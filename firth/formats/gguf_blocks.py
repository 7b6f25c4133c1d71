"""Dequantize the blocks of GGUF files: integers times scales, minus minima, to fp32.

The most common types are computed here, straight into the destination; the `gguf` library, which
needs more memory traffic for it, serves for the others.

n: blocks; g: groups of a block with a common scale.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth.utils.errors import UsageError

Array = np.ndarray[Any, Any]
Dequantize = Callable[[Tensor, Tensor], object]  # rows of bytes, rows of fp32 that are written

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Numbers that a thread converts at a time; the library's temporary arrays should stay in the cache.
CHUNK_NUMBERS, LIBRARY_CHUNK_NUMBERS = 1 << 20, 1 << 17


class Blocks(NamedTuple):
    """Blocks of small integers: number = integer * scale - minimum."""

    integers: Array  # (n, g, integers of a group)
    scales: Array  # (n, g, 1)
    minima: Array | None = None  # (n, g, 1)


def dequantizer(kind: str, block_bytes: int, path: Path) -> tuple[Dequantize, int]:
    """Return the function that converts rows of a type, and the numbers to convert at a time."""
    if kind in PLAIN:
        return lambda stored, out: out.copy_(stored.view(PLAIN[kind])), CHUNK_NUMBERS
    if kind not in UNPACKED:
        return _library_dequantize(kind, path), LIBRARY_CHUNK_NUMBERS

    def dequantize(stored: Tensor, out: Tensor) -> None:
        integers, scales, minima = UNPACKED[kind](stored.numpy().reshape(-1, block_bytes))
        numbers = np.multiply(integers, scales, out=out.numpy().reshape(integers.shape))
        if minima is not None:
            numbers -= minima

    return dequantize, CHUNK_NUMBERS


def _library_dequantize(kind: str, path: Path) -> Dequantize:
    try:
        from gguf import quants
    except ImportError as error:
        raise UsageError(
            f"{path} is quantised ({kind}), which needs the `gguf` library: "
            "pip install 'firth[gguf]'."
        ) from error
    # `quants.dequantize` takes 16 rows at a time, half as fast.
    blocks = getattr(quants, kind)
    blocks.init_grid()
    return lambda stored, out: np.copyto(out.numpy(), blocks.dequantize_rows(stored.numpy()))


def _half(stored: Array) -> Array:
    """Read half-precision numbers from bytes: (n, 2) -> (n, 1)."""
    return np.ascontiguousarray(stored).view("<f2").astype(np.float32)


def _nibbles(stored: Array) -> Array:
    """Split bytes into their low and high four bits: (n, c, b) -> (n, c, 2, b)."""
    return np.stack((stored & 15, stored >> 4), axis=2)


def _q8_0(blocks: Array) -> Blocks:
    return Blocks(blocks[:, None, 2:].view(np.int8), _half(blocks[:, :2])[..., None])


def _q4_0(blocks: Array) -> Blocks:
    integers = _nibbles(blocks[:, None, 2:]).view(np.int8) - np.int8(8)
    return Blocks(integers.reshape(-1, 1, 32), _half(blocks[:, :2])[..., None])


def _q4_k(blocks: Array) -> Blocks:
    low, low_minima, high = np.split(blocks[:, 4:16], 3, axis=1)  # (n, 4) each
    scales = np.hstack([low & 63, high & 15 | low >> 2 & 48])
    minima = np.hstack([low_minima & 63, high >> 4 | low_minima >> 2 & 48])
    return Blocks(
        _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32),
        (_half(blocks[:, :2]) * scales)[..., None],
        (_half(blocks[:, 2:4]) * minima)[..., None],
    )


def _q6_k(blocks: Array) -> Blocks:
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    upper = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4  # (n, 2, 4, 32)
    lower = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(upper.shape)
    integers = (lower | upper).view(np.int8) - np.int8(32)
    scales = _half(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8)
    return Blocks(integers.reshape(-1, 16, 16), scales[..., None])


UNPACKED: dict[str, Callable[[Array], Blocks]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
