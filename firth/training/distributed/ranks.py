"""The ranks of a run: one process for each device, started by torchrun.

Without torchrun there is one rank, no process group, and nothing here communicates. Metrics and
decisions of the hosts are exchanged as CPU tensors (gloo), also where gradients use NCCL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

FAKE_BACKEND = "fake"  # torch's: a dry run has one process, and the other ranks are like it

Item = TypeVar("Item")


class Ranks(NamedTuple):
    """This process's rank, and the number of all ranks (the world size)."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes the run's files."""
        return self.rank == 0


def restarted_by_torchrun() -> bool:
    """Return whether torchrun started this process again after a failure (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def current_ranks() -> Ranks:
    """Return the rank of this process and their number.

    >>> current_ranks()
    Ranks(rank=0, size=1)
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    return Ranks(dist.get_rank(), dist.get_world_size())


def is_dry_run() -> bool:
    """Return whether the other ranks are only assumed.

    >>> is_dry_run()
    False
    """
    return dist.is_available() and dist.is_initialized() and dist.get_backend() == FAKE_BACKEND


def wait_for_all() -> None:
    """Wait until every rank has come here."""
    gather_json(None)


def maximum(values: Sequence[float]) -> list[float]:
    """Return the largest of all ranks' values, for each of several.

    >>> maximum([1.0, 2.0])
    [1.0, 2.0]
    """
    if current_ranks().size == 1:
        return list(values)
    largest = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return list(values) if is_dry_run() else list(largest.tolist())


def gather_json(value: Any) -> list[Any]:
    """Return the values of all ranks, in their order; each is JSON.

    >>> gather_json({"loss": 1.5})
    [{'loss': 1.5}]
    """
    ranks = current_ranks()
    if ranks.size == 1 or is_dry_run():
        return [value] * ranks.size
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = torch.zeros(ranks.size, dtype=torch.int64)
    sizes[ranks.rank] = len(text)
    dist.all_reduce(sizes)
    longest = int(sizes.max())
    rows = [torch.zeros(longest, dtype=torch.uint8) for _ in range(ranks.size)]
    dist.all_gather(rows, torch.nn.functional.pad(text, (0, longest - len(text))))
    pairs = zip(rows, sizes.tolist(), strict=True)
    return [json.loads(bytes(row[:size].tolist())) for row, size in pairs]


def of_main_rank(value: Any) -> Any:
    """Return the main rank's value on every rank; it is JSON.

    >>> of_main_rank([1, "a"])
    [1, 'a']
    """
    return gather_json(value if current_ranks().is_main else None)[0]


def own_share(items: Iterable[Item]) -> list[Item]:
    """Return the items that this rank computes: every n-th of them, for n ranks.

    >>> own_share(["a", "b"])
    ['a', 'b']
    """
    ranks = current_ranks()
    return list(items)[ranks.rank :: ranks.size]


def rank_turns(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Yield every n-th item, for n ranks, each with True: it is this rank's own.

    A rank without an item in the last turn repeats another rank's, with False: a network whose
    weights are divided must run equally often on all ranks.

    >>> list(rank_turns("ab"))
    [('a', True), ('b', True)]
    """
    ranks, following = current_ranks(), iter(items)
    while turn := list(islice(following, ranks.size)):
        has_own = ranks.rank < len(turn)
        yield turn[ranks.rank if has_own else 0], has_own


def sum_by_name(values: Mapping[str, float]) -> dict[str, float]:
    """Return the sum of all ranks' values of each name.

    >>> sum_by_name({"masked": 2.5})
    {'masked': 2.5}
    """
    totals: dict[str, float] = {}
    for own in gather_json(dict(values)):
        for name, value in own.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def join_shares(found: dict[int, Item]) -> dict[int, Item]:
    """Return the results of all ranks, each by its number, on every rank."""
    size = current_ranks().size
    if size == 1:
        return found
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, found)
    return {number: result for share in everyone for number, result in share.items()}


def sum_arrays(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of all ranks' arrays.

    >>> sum_arrays(np.ones(2, np.float32))
    array([1., 1.], dtype=float32)
    """
    if current_ranks().size > 1:
        dist.all_reduce(torch.from_numpy(values))  # in place
    return values
