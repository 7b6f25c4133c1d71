"""Triton, where it is installed: with CUDA builds of torch. Kernels are only defined there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["gdc_launch_dependents", "gdc_wait", "jit", "tl"]

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError:
    triton = tl = None
try:
    from triton.language.extra.cuda import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
        gdc_launch_dependents,
        gdc_wait,
    )
except ImportError:  # before Triton 3.5
    gdc_launch_dependents = gdc_wait = None


def jit(function: Callable[..., Any]) -> Any:
    """Make a Triton kernel, or a function that kernels call."""
    return function if triton is None else triton.jit(function)
