"""The process group of a job under torchrun, and errors that name the rank that failed.

    torchrun --nproc-per-node 8 -m firth pretrain …

Every process runs the whole job. The main rank (0) prints and writes; the others keep a log of
their own. If a rank ends, the sockets to it close, and every other rank's next exchange fails. The
ranks that are left then report themselves in torchrun's key-value store: the others have failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache, wraps
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from firth.training.distributed.ranks import (
    Ranks,
    current_ranks,
    restarted_by_torchrun,
)
from firth.utils.devices import Device, select_device
from firth.utils.errors import FirthError, UsageError
from firth.utils.torchrun import launched_by_torchrun

Job = TypeVar("Job", bound=Callable[..., Any])

START_TIMEOUT = timedelta(minutes=5)  # for all ranks to connect
EXCHANGE_TIMEOUT = timedelta(minutes=30)  # for a slow rank, such as one that writes a checkpoint
_JOBS = count()  # jobs of this process so far
RESUME = (  # after a failure
    "the same command with --resume continues from the last checkpoint, as `torchrun "
    "--max-restarts` does by itself."
)
REPORT_SECONDS = 10.0  # in which the ranks that are left report themselves
BROKEN = (  # in messages of gloo, NCCL and the key-value store about another process
    *("onnection closed", "onnection reset", "roken pipe", "imed out", "ncclRemoteError"),
    *("onnection refused", "NCCL", "ocket", "recvValue", "sendBytes", "ailed to connect"),
)


class RankFailed(FirthError):
    """Another process of the run has ended."""


def on_all_ranks(job: Job) -> Job:
    """Make a job run on every process that torchrun started; without torchrun, change nothing.

    The job's `device` becomes the GPU of its local rank, only the main rank calls `callback`, and a
    process that torchrun started again resumes.
    """

    @wraps(job)
    def run(*args: Any, **options: Any) -> Any:
        if not launched_by_torchrun() or dist.is_initialized() or options.get("dry_run"):
            return job(*args, **options)
        with process_group(options.get("device"), RESUME) as device:
            options["device"] = device
            options["resume"] = options.get("resume", False) or restarted_by_torchrun()
            if not current_ranks().is_main:
                options["callback"] = lambda kind, metrics: None
            return job(*args, **options)

    return run  # type: ignore[return-value]


@contextmanager
def process_group(
    requested: Device = None, advice: str = "run the command again."
) -> Iterator[torch.device]:
    """Connect all ranks; yield the device of this one. An error names the rank that failed."""
    ranks = Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    device = rank_device(requested)
    store = _new_store(ranks)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("process-group", store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=EXCHANGE_TIMEOUT,
        )
        yield device
    except Exception as error:
        failed = _failed_ranks(store, ranks, error)
        if not failed:
            raise
        raise RankFailed(f"{failed} ended, so all ranks end; {advice}") from error
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):  # another rank has ended
                dist.destroy_process_group()


def rank_device(requested: Device) -> torch.device:
    """Return the device of this process: the GPU of its local rank, or the CPU.

    >>> rank_device("cpu")
    device(type='cpu')
    """
    device = select_device(requested)
    if device.type == "mps":
        raise UsageError("torchrun needs CUDA GPUs or --device cpu.")
    if device.type != "cuda" or device.index is not None:
        return device
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise UsageError(
            f"Local rank {local} has no GPU of its own: this machine has "
            f"{torch.cuda.device_count()}; start that many processes with --nproc-per-node."
        )
    return select_device(torch.device("cuda", local))


def _new_store(ranks: Ranks) -> Store:
    """Return a key-value store for one job: each has names of its own."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"firth/{attempt}/{next(_JOBS)}", _store(ranks))


@cache
def _store(ranks: Ranks) -> Store:
    """Connect to torchrun's key-value store; without its agent, the main rank has one."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size=None,
        is_master=ranks.is_main and not has_agent,
        timeout=START_TIMEOUT,
        wait_for_workers=False,
    )


def _failed_ranks(store: Store, ranks: Ranks, error: Exception) -> str:
    """Return which other ranks ended and why, as the subject of a sentence; "" if none did."""
    if ranks.size == 1:
        return ""
    if isinstance(error, FirthError) or not any(part in str(error) for part in BROKEN):
        with suppress(RuntimeError):
            store.set(f"failed/{ranks.rank}", str(error) or type(error).__name__)
        return ""
    try:
        store.set(f"left/{ranks.rank}", "")
        return describe_failed(_missing(store, ranks))
    except RuntimeError:  # the store is on a machine that is down
        return "Rank 0 or its machine"


def _missing(store: Store, ranks: Ranks) -> dict[int, str]:
    """Return the ranks that do not report themselves in time, with their errors if known."""
    ends = time.monotonic() + REPORT_SECONDS
    others = [rank for rank in range(ranks.size) if rank != ranks.rank]
    while others and time.monotonic() < ends:
        others = [rank for rank in others if not store.check([f"left/{rank}"])]
        if others and all(store.check([f"failed/{rank}"]) for rank in others):
            break
        time.sleep(0.1)
    return {
        rank: store.get(f"failed/{rank}").decode() if store.check([f"failed/{rank}"]) else ""
        for rank in others
    }


def describe_failed(errors: dict[int, str]) -> str:
    """Describe failed ranks as the subject of a sentence.

    >>> describe_failed({1: "", 3: "Out of memory."}), describe_failed({})
    ('Rank 1 and rank 3 (Out of memory)', '')
    """
    named = [
        f"rank {rank}" + (f" ({why.rstrip('.')})" if why else "") for rank, why in errors.items()
    ]
    text = " and ".join(named)
    return text[:1].upper() + text[1:]
