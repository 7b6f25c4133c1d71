"""What torchrun tells the processes that it starts; without torch, which takes long to import."""

from __future__ import annotations

import os

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # environment variables


def launched_by_torchrun() -> bool:
    """Return whether torchrun (or a program that sets its variables) started this process."""
    return all(name in os.environ for name in LAUNCHED)


def launched_rank() -> int:
    """Return the rank that torchrun gave this process; 0 without torchrun.

    >>> launched_rank()
    0
    """
    return int(os.environ["RANK"]) if launched_by_torchrun() else 0


def launched_world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun.

    >>> launched_world_size()
    1
    """
    return int(os.environ["WORLD_SIZE"]) if launched_by_torchrun() else 1
