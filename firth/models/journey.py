"""Numbers on their way to where a network is, and back: nothing waits for them on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_tensor(
    values: NDArray[Any] | None, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """An array where the network is."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    tensor = tensor if dtype is None else tensor.to(dtype)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Fetched:
    """A tensor that comes from where the network is.

    >>> Fetched(torch.ones(2)).here()
    tensor([1., 1.])
    """

    def __init__(self, tensor: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def here(self) -> Tensor:
        """The tensor, once it has come."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensor
