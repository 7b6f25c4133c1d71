"""Errors of a processor or a GPU: out of memory, and failures."""

from __future__ import annotations

import torch

from firth.utils.errors import DeviceError

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


def gpu_failure(error: torch.AcceleratorError, step: int, saved: int) -> DeviceError:
    """Describe the failure of a GPU at about this step, given that of the newest checkpoint."""
    return DeviceError(
        f"The GPU failed at about step {step} ({str(error).splitlines()[0]}); the same command "
        f"with --resume continues from step {saved}."
    )
