"""Where Triton kernels run in tests: on a GPU, else in Triton's interpreter, where it is installed.

`conftest.py` turns the interpreter on. It computes products of bfloat16 wrongly.
"""

from __future__ import annotations

import pytest
import torch

from firth.utils.triton_language import tl

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float16
runs_kernels = pytest.mark.skipif(tl is None, reason="Triton is not installed.")
