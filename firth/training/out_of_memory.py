"""Recognise out-of-memory errors."""

from __future__ import annotations

import torch

# Messages of torch, oneDNN, CUDA, C++ and the operating system.
MESSAGES = (
    *("not enough memory", "can't allocate memory", "could not create a primitive"),
    *("bad_alloc", "Cannot allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"),
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory; torch has its own type only for some cases."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in MESSAGES)
