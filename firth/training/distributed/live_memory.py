"""The bytes of all tensors that are alive, and their maximum; also of fake tensors.

A fake tensor (torch's `FakeTensorMode`) has a shape, a dtype and a device, but no memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from firth.training.distributed.divided_tensors import is_divided

Storage = torch.UntypedStorage


class LiveMemory(TorchDispatchMode):
    """Track the memory of every tensor that an operation returns while this is active.

    >>> with LiveMemory() as memory:
    ...     x = torch.ones(100).view(10, 10)  # a view has no memory of its own
    ...     y = x + 1
    ...     del x
    >>> memory.now, memory.peak
    (400, 800)
    """

    def __init__(self, on_peak: Callable[[], None] = lambda: None) -> None:
        """`on_peak` is called whenever there are more bytes than ever before."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0  # bytes
        self.on_peak = on_peak
        self._sizes: dict[int, int] = {}  # address of a storage -> its bytes

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        self._track(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _track(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if is_divided(tensor):  # its rows are a tensor of their own
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = 0
                weakref.finalize(storage, self._remove, storage._cdata)
            self._update(storage)

    def _update(self, storage: Storage) -> None:
        self.now += storage.nbytes() - self._sizes[storage._cdata]
        self._sizes[storage._cdata] = storage.nbytes()
        if self.now > self.peak:
            self.peak = self.now
            self.on_peak()

    def _remove(self, address: int) -> None:
        self.now -= self._sizes.pop(address)

    def __enter__(self) -> LiveMemory:
        """Also track storages that are resized, as FSDP2 does with gathered weights."""
        original = self._resize = Storage.resize_

        def resize(storage: Storage, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._sizes:
                self._update(storage)
            return result

        Storage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        Storage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]
