"""Time and memory of a function in a process of its own, and of all processes it starts.

Memory is the resident set (RSS) of the whole tree, looked at every 50 ms: pages that two processes
share count twice, so the peak is rather too high than too low.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

PAUSE = 0.05  # seconds between two looks
PAGE = os.sysconf("SC_PAGE_SIZE")


class Measured(NamedTuple):
    """What a function returned, and what it took."""

    result: Any
    seconds: float  # of the call alone: starting Python and importing modules is not counted
    cpu: float  # seconds of processor time: what a busy machine distorts least
    peak: int  # bytes, of the whole process tree


def measure(
    function: Callable[..., Any], *arguments: Any, memory: int | None = None
) -> Measured | None:
    """Call a module's function in a new process; None if `memory` bytes were too few for it."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(sender, memory, function, arguments))
    child.start()
    sender.close()
    assert child.pid is not None
    peak = 0
    while child.exitcode is None:
        peak = max(peak, sum(map(_resident, _tree(child.pid))))
        child.join(PAUSE)
    if child.exitcode < 0 and memory is not None:
        return None
    if child.exitcode != 0:
        raise SystemExit(f"{function.__name__} ended with exit code {child.exitcode}.")
    result, seconds, cpu = receiver.recv()
    return Measured(result, seconds, cpu, peak)


def _call(
    sender: Connection, memory: int | None, function: Callable[..., Any], arguments: Any
) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    started, cpu = time.perf_counter(), _cpu()
    try:
        result = function(*arguments)
    except MemoryError:
        os.abort()  # what native code does when memory runs out
    sender.send((result, time.perf_counter() - started, _cpu() - cpu))


def _cpu() -> float:
    """Seconds of processor time of this process and of the children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _tree(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(file).split():
            yield from _tree(int(child))


def _resident(pid: int) -> int:
    fields = _read(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * PAGE if fields else 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""
