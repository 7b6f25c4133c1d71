"""A stream, some items at a time: as many as make a good batch, or as many as are there.

And, at its end, a file that grows line by line.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from firth.errors import FirthError, InputError, Interrupted, storage_errors
from firth.files import growing_file, part_of

Item = TypeVar("Item")

MOST = 1024  # items that are looked at together
ROOM = 1 << 20  # characters of them
HOPELESS = 100  # bad rows before the first good one
IN_A_ROW = 100_000  # bad rows without a good one between them
PATIENCE = 0.2  # seconds after which a reader looks whether anyone still wants what it reads
PAUSE, END = object(), object()


def windows(
    items: Iterable[Item],
    size: Callable[[Item], int],
    *,
    most: int = MOST,
    room: int = ROOM,
    live: bool = False,
) -> Iterator[list[Item]]:
    """Neighbouring items in lists: at most so many, of so much in all, or one that is larger.

    With `live`, no item waits for another that is not there yet: what a person types, or another
    program writes, is passed on at once; what lies in a pipe is taken together.

    >>> list(windows(["a", "b", "cccc", "d"], len, room=3))
    [['a', 'b'], ['cccc'], ['d']]
    """
    window: list[Any] = []
    used = 0
    for item in _arriving(items, most) if live else items:
        own = 0 if item is PAUSE else size(item)
        if window and (item is PAUSE or len(window) == most or used + own > room):
            yield window
            window, used = [], 0
        if item is not PAUSE:
            window.append(item)
            used += own
    if window:
        yield window


def in_windows(
    items: Iterable[Item], size: Callable[[Item], int], most: int, count: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Neighbours together until they are so large, or so many: memory is bounded.

    >>> list(in_windows(["ab", "c", "dddd", "e"], len, most=3))
    [['ab', 'c'], ['dddd'], ['e']]
    """
    window: list[Item] = []
    total = 0
    for item in items:
        window.append(item)
        total += size(item)
        if total >= most or len(window) == count:
            yield window
            window, total = [], 0
    if window:
        yield window


def with_errors(
    read: Callable[[Callable[[InputError], None]], Iterator[Item]], name: str = ""
) -> Iterator[Item | InputError]:
    """What can be read, with what is wrong with the rest between it; `read` is given whom to tell.

    Where nothing at all can be read, it is the whole file that is wrong: that is an error. So is,
    of a file that is named, that there is nothing in it.

    >>> def read(tell):
    ...     yield "a"
    ...     tell(InputError("line 2 is bad."))
    ...     yield "c"
    >>> list(with_errors(read))
    ['a', InputError('line 2 is bad.'), 'c']
    """
    waiting: list[InputError] = []
    some = False

    def tell(error: InputError) -> None:
        waiting.append(error)
        if len(waiting) >= (IN_A_ROW if some else HOPELESS):
            raise waiting[0]

    for item in read(tell):
        some = True
        yield from waiting
        waiting.clear()
        yield item
    if not some and (waiting or name):
        raise waiting[0] if waiting else holds_nothing(name)
    yield from waiting


def holds_nothing(name: str) -> InputError:
    """What is said of a file without any row."""
    return InputError(f"{name} holds no text: there is not a single row in it.")


def _arriving(items: Iterable[Any], most: int) -> Iterator[Any]:
    """The items, read by a thread of their own; PAUSE wherever none is there yet."""
    there: queue.Queue[Any] = queue.Queue(most)
    left = threading.Event()  # nobody wants the rest

    def put(item: Any) -> bool:
        while not left.is_set():
            try:
                there.put(item, timeout=PATIENCE)
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
                item = there.get_nowait()
            except queue.Empty:
                yield PAUSE
                item = there.get()
            if isinstance(item, _Raised):
                raise item.error
            if item is END:
                return
            yield item
    finally:
        left.set()


class _Raised:
    """What went wrong in the thread that reads."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def write_lines(
    values: Iterable[Any],
    path: str | Path,
    progress: Callable[[str, int, int], None] = lambda what, done, there: None,
) -> int:
    """Values as JSONL, a line for each, as they come; how many lines there are.

    Until all are there, the file is called NAME.part: whatever happens, it holds whole lines.
    """
    out, count = Path(path), 0
    try:
        with (
            storage_errors(out, "Free some space or name another place."),
            growing_file(out) as write,
        ):
            for value in values:
                write(json.dumps(value, ensure_ascii=False))
                count += 1
                progress("answered", count, 0)
    except (FirthError, KeyboardInterrupt) as error:
        if not count:
            raise
        kind, why = (type(error), str(error)) if str(error) else (Interrupted, "Interrupted.")
        kept = "answer before that is" if count == 1 else "answers before that are"
        raise kind(f"{why} The {count:,} {kept} in {part_of(out)}.") from error
    return count
