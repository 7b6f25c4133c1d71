"""Count what a rank sends in collective operations, from the calls of `torch.distributed`.

W ranks exchange in rings: an all-reduce of n bytes sends 2 n (W - 1) / W from each rank, an
all-gather, a reduce-scatter and, on average over the ranks, a broadcast half as much (Thakur et al.
2005, sections 4.1 to 4.4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operation of torch -> name, argument with the bytes of the whole exchange, times they are sent
COLLECTIVES = {
    "c10d::allreduce_": ("all-reduce", 0, 2),
    "c10d::broadcast_": ("broadcast", 0, 1),
    "c10d::allgather_": ("all-gather", 0, 1),
    "c10d::_allgather_base_": ("all-gather", 0, 1),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", 1, 1),
}


class CollectiveCounter(TorchDispatchMode):
    """Count the calls and bytes of each collective operation while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.payload: Counter[str] = Counter()  # bytes of the exchanged tensors
        self.unknown: set[str] = set()  # other operations, whose bytes were not counted

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if found := COLLECTIVES.get(operation.name()):
            name, argument, _ = found
            self.calls[name] += 1
            self.payload[name] += num_bytes(args[argument])
        elif operation.namespace in ("c10d", "_c10d_functional"):
            self.unknown.add(operation.name())
        return operation(*args, **(kwargs or {}))


def ring_bytes(payload: Mapping[str, int], ranks: int) -> int:
    """Return the bytes that each of several ranks sends, given the bytes of each operation.

    >>> ring_bytes({"all-reduce": 1000, "broadcast": 1000}, ranks=4)
    2250
    """
    times = {name: times for name, _, times in COLLECTIVES.values()}
    return sum(times[name] * size for name, size in payload.items()) * (ranks - 1) // ranks


def num_bytes(tensors: Tensor | Sequence[Any]) -> int:
    """Return the bytes of a tensor, or of nested lists of tensors."""
    if isinstance(tensors, Tensor):
        return tensors.nbytes
    return sum(map(num_bytes, tensors))
