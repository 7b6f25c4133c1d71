"""All cores for one function: results in order, memory bounded, no process left behind."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

from firth.errors import FirthError

Item = TypeVar("Item")
Result = TypeVar("Result")

_work: Callable[[Any], Any]  # in a worker process: what it does with each item


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    make: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    workers: int | None = None,
) -> Iterator[Result]:
    """Apply what `make()` returns to each item, on all cores, and yield the results in order.

    `make` runs once in each worker process, so that what is costly to build is built once. Only a
    few items are in flight. Too few items for every worker to get one are done in this process.

    >>> from functools import partial
    >>> list(ordered_map(partial(partial, pow, 2), [1, 2, 3], workers=1))
    [2, 4, 8]
    """
    workers = workers or cores()
    items = iter(items)
    first = list(islice(items, workers))
    items = chain(first, items)
    if workers == 1 or len(first) < workers:
        yield from map(make(), items)
        return
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start, initargs=(make,)
    )
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            with _no_main_module():  # a submission may start a process
                waiting.append(executor.submit(_call, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise FirthError(
            "A worker process was killed, most likely because memory ran out; "
            "fewer workers need less (--workers 1)."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep new processes from running the user's script again; they need nothing from it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core, one thread a process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _work
    _work = make()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(item: Any) -> Any:
    return _work(item)
