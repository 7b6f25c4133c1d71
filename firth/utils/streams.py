"""Batches of streamed items, errors of single rows, and JSONL output that grows line by line."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from firth.utils.errors import FirthError, InputError, Interrupted, storage_errors
from firth.utils.files import growing_file, partial_path

Item = TypeVar("Item")

MAX_ITEMS = 1024  # per batch
MAX_CHARACTERS = 1 << 20  # per batch
MAX_LEADING_ERRORS = 100  # bad rows before the first good one
MAX_CONSECUTIVE_ERRORS = 100_000  # bad rows without a good one between them
POLL_SECONDS = 0.2  # how often the reading thread checks whether the consumer has stopped
PAUSE, END = object(), object()


def bounded_batches(
    items: Iterable[Item],
    size: Callable[[Item], int],
    *,
    max_size: int = MAX_CHARACTERS,
    max_items: int = MAX_ITEMS,
    padded: bool = False,
    live: bool = False,
) -> Iterator[list[Item]]:
    """Batch consecutive items within `max_items` and `max_size`; a larger item gets its own batch.

    With `padded`, all items of a batch count as much as the largest. With `live`, a batch ends as
    soon as no further item is available, so input from a terminal or a pipe is passed on at once.

    >>> list(bounded_batches(["a", "b", "cccc", "d"], len, max_size=3))
    [['a', 'b'], ['cccc'], ['d']]
    >>> list(bounded_batches(["aaa", "b", "c"], len, max_size=6, padded=True))
    [['aaa', 'b'], ['c']]
    """
    batch: list[Any] = []
    total = largest = 0
    for item in _read_live(items, max_items) if live else items:
        own = 0 if item is PAUSE else size(item)
        bound = max(largest, own) * (len(batch) + 1) if padded else total + own
        if batch and (item is PAUSE or len(batch) == max_items or bound > max_size):
            yield batch
            batch, total, largest = [], 0, 0
        if item is not PAUSE:
            batch.append(item)
            total, largest = total + own, max(largest, own)
    if batch:
        yield batch


def interleave_errors(
    read: Callable[[Callable[[InputError], None]], Iterator[Item]],
    name: str = "",
    *,
    needs_valid: bool = True,
) -> Iterator[Item | InputError]:
    """Yield the rows of `read` and, in order, the errors it reports through its callback.

    Raise the first error if there are far too many errors or, with `needs_valid`, no valid row near
    the start; and an `InputError` if a named file is empty.

    >>> def read(report):
    ...     yield "a"
    ...     report(InputError("line 2 is bad."))
    ...     yield "c"
    >>> list(interleave_errors(read))
    ['a', InputError('line 2 is bad.'), 'c']
    """
    errors: list[InputError] = []
    any_valid = not needs_valid

    def report(error: InputError) -> None:
        errors.append(error)
        if len(errors) >= (MAX_CONSECUTIVE_ERRORS if any_valid else MAX_LEADING_ERRORS):
            raise errors[0]

    try:
        for item in read(report):
            any_valid = True
            yield from errors
            errors.clear()
            yield item
    except InputError:
        if errors and not any_valid:  # rather than that there are no examples
            raise errors[0] from None
        raise
    if not any_valid and (errors or name):
        raise errors[0] if errors else empty_file_error(name)
    yield from errors


def empty_file_error(name: str) -> InputError:
    """Return the error for a file without rows."""
    return InputError(f"{name} holds no text: it has no rows.")


def _read_live(items: Iterable[Any], max_items: int) -> Iterator[Any]:
    """Read the items in a thread; yield PAUSE whenever none is available yet."""
    available: queue.Queue[Any] = queue.Queue(max_items)
    stopped = threading.Event()  # the consumer has stopped

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                available.put(item, timeout=POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            if all(put(item) for item in items):
                put(END)
        except BaseException as error:
            put(_Raised(error))

    threading.Thread(target=read, daemon=True).start()
    try:
        while True:
            try:
                item = available.get_nowait()
            except queue.Empty:
                yield PAUSE
                item = available.get()
            if isinstance(item, _Raised):
                raise item.error
            if item is END:
                return
            yield item
    finally:
        stopped.set()


class _Raised:
    """An exception of the reading thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def write_lines(
    values: Iterable[Any],
    path: str | Path,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> int:
    """Write values as JSONL as they are produced, and return the number of lines.

    Until it is complete, the file is called NAME.part; it always holds whole lines.
    """
    out, count = Path(path), 0
    try:
        with storage_errors(out), growing_file(out) as write:
            for value in values:
                write(json.dumps(value, ensure_ascii=False))
                count += 1
                progress("answered", count, 0)
    except (FirthError, KeyboardInterrupt) as error:
        if not count:
            raise
        kind, why = (type(error), str(error)) if str(error) else (Interrupted, "Interrupted.")
        kept = "answer before that is" if count == 1 else "answers before that are"
        raise kind(f"{why} The {count:,} {kept} in {partial_path(out)}.") from error
    return count
