"""Tasks on a Ray cluster: repeated after failures, and named when they fail for good.

The cluster is that of the environment variable RAY_ADDRESS, or one on this machine alone.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from firth.utils.errors import FirthError, InputError, MismatchError, UsageError

Item = TypeVar("Item")
Result = TypeVar("Result")

ENGINES = ("local", "ray")
ATTEMPTS = 3
FINAL = (InputError, MismatchError, UsageError)  # errors that would be the same again
TOKEN = "; a cluster that was started with token authentication needs RAY_AUTH_MODE=token"
CONTINUE = "the others are kept, and the same command continues with what is missing"


def check_engine(engine: str) -> None:
    """Raise a usage error for an unknown engine."""
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine} is unknown; choose one of {', '.join(ENGINES)}.")


class RayTasks:
    """Apply functions to items as Ray tasks of one CPU core each.

    A task that fails, or whose worker process or machine dies, is run again, up to three times.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self._run = ray.remote(_run_task).options(max_retries=0, num_cpus=1)

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the results in the order of the items."""
        given = list(items)
        return [result for _, result in sorted(self.as_completed(function, given), key=_first)]

    def as_completed(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[int, Result]]:
        """Yield the number of each item and its result; then raise an error for failed items."""
        given = list(items)
        shared = self.ray.put(function)
        pending = {self._submit(shared, item): number for number, item in enumerate(given)}
        failures: Counter[int] = Counter()
        failed: dict[int, BaseException] = {}
        while pending:
            [done], _ = self.ray.wait(list(pending), num_returns=1)
            number = pending.pop(done)
            try:
                result = self.ray.get(done)
            except self.ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                failures[number] += 1
                if failures[number] < ATTEMPTS and not isinstance(cause, FINAL):
                    pending[self._submit(shared, given[number])] = number
                else:
                    failed[number] = cause
            else:
                yield number, result
        if failed:
            raise _task_error({str(given[number]): failed[number] for number in sorted(failed)})

    def _submit(self, shared: Any, item: Any) -> Any:
        return self._run.remote(shared, item, os.getcwd())


def _run_task(function: Callable[[Any], Any], item: Any, folder: str) -> Any:
    """Run a task in a worker process of Ray, in the driver's folder if it exists there."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread per task
    if os.path.isdir(folder):
        os.chdir(folder)
    return function(item)


def _first(pair: tuple[int, Any]) -> int:
    return pair[0]


def _task_error(failed: dict[str, BaseException]) -> FirthError:
    """Return the error of tasks that failed for good.

    >>> print(_task_error({"3/8": FirthError("The disk is full.")}))
    Task 3/8 failed: The disk is full; the others are kept, and the same command continues with \
what is missing.
    """
    tasks = "Tasks" if len(failed) > 1 else "Task"
    first = next(iter(failed.values()))
    reason = (str(first).splitlines() or [""])[0].rstrip(".")
    kind = type(first) if isinstance(first, FirthError) else FirthError
    times = "" if isinstance(first, FirthError) else f" {ATTEMPTS} times"
    return kind(f"{tasks} {', '.join(failed)} failed{times}: {reason}; {CONTINUE}.")


@contextmanager
def ray_tasks() -> Iterator[RayTasks]:
    """Connect to the Ray cluster of RAY_ADDRESS, or start one on this machine until the end."""
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray: pip install 'firth[ray]'.") from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends them by default
    was_connected = ray.is_initialized()
    if not was_connected:
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, OSError, RuntimeError, ray.exceptions.RayError) as error:
            what = "started" if address == "local" else f"reached at RAY_ADDRESS={address}"
            token = "" if address == "local" else TOKEN
            raise FirthError(
                f"Ray could not be {what}: {str(error).rstrip('.')}{token}."
            ) from error
    try:
        yield RayTasks(ray)
    finally:
        if not was_connected:
            ray.shutdown()
