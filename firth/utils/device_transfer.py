"""Asynchronous copies between host and device memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(
    values: NDArray[Any] | None, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Copy an array to a device, through pinned memory and without waiting for a GPU."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    tensor = tensor if dtype is None else tensor.to(dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class AsyncFetch:
    """A copy of a tensor to the host that does not block until its value is needed.

    >>> AsyncFetch(torch.ones(2)).wait()
    tensor([1., 1.])
    """

    def __init__(self, tensor: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def wait(self) -> Tensor:
        """Return the tensor on the host once the copy has finished."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensor
