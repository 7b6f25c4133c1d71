"""Tests of the C step; those that run it are skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest

from firth.quantization import c_library as library

needs_native = pytest.mark.skipif(
    library.load_library() is None, reason=f"{library.unavailable_reason()}."
)
