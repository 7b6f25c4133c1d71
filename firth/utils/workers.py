"""A parallel map over worker processes: ordered results, bounded memory, clean shutdown."""

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

from firth.utils.errors import FirthError

Item = TypeVar("Item")
Result = TypeVar("Result")

_function: Callable[[Any], Any]  # in a worker process: the function applied to each item


def available_cores() -> int:
    """Return the number of CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    make: Callable[[], Callable[[Item], Result]],
    items: Iterable[Item],
    workers: int | None = None,
) -> Iterator[Result]:
    """Apply the function `make()` to each item in worker processes; yield the results in order.

    `make` is called once per worker process, so expensive objects are built only once. At most
    two items per worker are queued. With fewer items than workers, no process is started.

    >>> from functools import partial
    >>> list(ordered_map(partial(partial, pow, 2), [1, 2, 3], workers=1))
    [2, 4, 8]
    """
    workers = workers or available_cores()
    items = iter(items)
    first = list(islice(items, workers))
    items = chain(first, items)
    if workers == 1 or len(first) < workers:
        yield from map(make(), items)
        return
    executor = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start, initargs=(make,)
    )
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            with _no_main_module():  # a submission may start a process
                pending.append(executor.submit(_call, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise FirthError(
            "A worker process was killed, probably because memory ran out; "
            "use fewer workers (--workers 1)."
        ) from error
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.kill()  # it ignores Ctrl-C, and in a training run SIGTERM only ends the run
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Hide `__main__`, so that a spawned process does not run the user's script again."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per worker process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    global _function
    _function = make()


def _end_with_parent() -> None:
    """Exit when the parent process dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(item: Any) -> Any:
    return _function(item)
