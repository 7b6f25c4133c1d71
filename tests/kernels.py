"""Where Triton kernels run in tests: on a GPU, else in Triton's interpreter, where it is installed.

`conftest.py` turns the interpreter on. It computes products of bfloat16 wrongly.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from firth.utils.triton_language import tl

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float16
runs_kernels = pytest.mark.skipif(tl is None, reason="Triton is not installed.")

if tl is not None and not ON_GPU:
    from triton.runtime import interpreter  # type: ignore[import-not-found,unused-ignore]

    patch_tensors = interpreter._patch_lang_tensor

    def patch_tensors_and_index(tensor: Any, scope: Any) -> None:
        """NumPy 2.4 converts arrays of one number, the bounds of a loop, no longer implicitly."""
        patch_tensors(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensors_and_index
