"""Measure the time and the peak memory of a function in a process of its own.

Memory is the sum of the resident set sizes (RSS) of the process and all its descendants, sampled
every 50 ms. Pages that two processes share are counted twice, which makes the sum an upper bound at
each sample.
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

SAMPLING_INTERVAL = 0.05  # seconds between two samples of memory
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class Measured(NamedTuple):
    """A function's return value, time and peak memory."""

    result: Any
    seconds: float  # wall-clock time of the call, without starting Python and importing modules
    cpu: float  # CPU seconds: less affected by other load than wall-clock time
    peak: int  # bytes: peak RSS of the whole process tree


def measure(
    function: Callable[..., Any], *arguments: Any, memory: int | None = None
) -> Measured | None:
    """Call a module's function in a new process; return None if `memory` bytes did not suffice."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_call, args=(sender, memory, function, arguments))
    child.start()
    sender.close()
    assert child.pid is not None
    peak = 0
    while not receiver.poll(SAMPLING_INTERVAL):
        peak = max(peak, sum(map(_resident, _process_tree(child.pid))))
    try:
        result, seconds, cpu = receiver.recv()  # before the child has ended: pipes are small
    except EOFError:  # it sent nothing
        child.join()
        if (child.exitcode or 0) < 0 and memory is not None:
            return None
        raise SystemExit(f"{function.__name__} ended with exit code {child.exitcode}.") from None
    child.join()
    return Measured(result, seconds, cpu, peak)


def _call(
    sender: Connection, memory: int | None, function: Callable[..., Any], arguments: Any
) -> None:
    """Call the function in the child process; send its result, seconds and CPU seconds."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    started, cpu = time.perf_counter(), _cpu()
    try:
        result = function(*arguments)
    except MemoryError:
        os.abort()  # as native code does when memory runs out
    sender.send((result, time.perf_counter() - started, _cpu() - cpu))


def _cpu() -> float:
    """Return the CPU seconds of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _end_with_parent() -> None:
    """Exit as soon as the parent process has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _process_tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of all its descendants."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read_proc(file).split():
            yield from _process_tree(int(child))


def _resident(pid: int) -> int:
    """Return the RSS of a process in bytes, or 0 if the process has ended."""
    fields = _read_proc(Path(f"/proc/{pid}/statm")).split()
    return int(fields[1]) * PAGE_SIZE if fields else 0


def _read_proc(file: Path) -> str:
    """Return the text of a file in /proc, or an empty string if its process has ended."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return ""
